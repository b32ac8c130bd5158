package config

// Profile is a set of resources and a patch of the pod under a name, for models with launcher
// kubernetes.
type Profile struct {
	// Name is the name that models give in profiles.
	Name string `yaml:"name" required:"true" form:"name"`
	// Resources are the resources of each replica. The resources of the model override them, field
	// by field. Default: absent.
	Resources *Resources `yaml:"resources"`
	// GPUResource is the name of the GPU resource. The gpu_resource of the model overrides it.
	// Default: empty.
	GPUResource string `yaml:"gpu_resource"`
	// Pod is a strategic merge patch over the template of the pods, as pod of a model. Default:
	// empty.
	Pod map[string]any `yaml:"pod"`
}
