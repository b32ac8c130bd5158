package kubernetes

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/podpatch"
)

// Labels of the installation's objects. The launcher never touches an object that lacks the first
// two.
const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "sluice"
	labelInstall   = "sluice.dev/install"
	// The names of models may contain characters that labels may not.
	labelModel = "sluice.dev/model-hash"
	// On a pod: the name of its Deployment. It is also the selector.
	labelDeployment = "sluice.dev/deployment"
	labelRole       = "sluice.dev/role"
)

// Annotations of the installation's objects.
const (
	annotationModel    = "sluice.dev/model"
	annotationSlots    = "sluice.dev/slots"
	annotationPort     = "sluice.dev/port"
	annotationDrain    = "sluice.dev/drain-timeout"
	annotationDraining = "sluice.dev/draining" // on a pod: since when
	annotationLoad     = "sluice.dev/load"     // on a gateway's lease
	annotationCost     = "controller.kubernetes.io/pod-deletion-cost"
	// On a pod template: it distinguishes a Deployment from a later one of the same name.
	annotationMade = "sluice.dev/made"
	// On a Job that fetches weights: the hash of its container.
	annotationLoader = "sluice.dev/loader"
	// On a Job that fetches weights: the UID of the claim, if Sluice makes it.
	annotationClaim = "sluice.dev/claim"
	// On a Deployment: when a marked pod was last undrained.
	annotationRecalled = "sluice.dev/recalled"
	// On a Deployment: how many of its pods had been placed when an old pod last made room.
	annotationRoom = "sluice.dev/room-made"
	// On a Deployment: the name of that old pod.
	annotationRoomBy = "sluice.dev/room-made-by"
)

const (
	// engineContainer is the name of the engine's container.
	engineContainer = podpatch.EngineContainer
	// enginePort is the port of the engine. Every pod has its own address.
	enginePort = 8000
	// defaultHost is the address on which engines listen that name none.
	defaultHost = "0.0.0.0"
	// defaultGPUResource is the resource name of GPUs.
	defaultGPUResource = "nvidia.com/gpu"
	// preStopSeconds is how long a deleted pod continues to serve, in seconds, for example after an
	// eviction. It is the longest time for which Envoy holds a request. The leader ends the pod as
	// soon as it has no requests; see endPods.
	preStopSeconds = 3600
	// stopGraceSeconds is how long the engine then has to stop, in seconds.
	stopGraceSeconds = 30
	// restartGraceSeconds is how long an engine that has failed its probe may take to end, in
	// seconds. The hook before the stop counts.
	restartGraceSeconds = 10
	// probeTimeoutSeconds is long, because an engine answers late during a large prefill.
	probeTimeoutSeconds = 10
	// defaultStartTimeout is the default of Model.StartTimeout.
	defaultStartTimeout = 30 * time.Minute
	// maxLabelLength is the limit of Kubernetes.
	maxLabelLength = 63
	// maxSlugLength keeps names readable.
	maxSlugLength = 40
)

// install holds what all objects of an installation have in common.
type install struct {
	name         string
	drainTimeout time.Duration
}

// labels returns the labels of every object of the installation.
func (in install) labels() map[string]string {
	return map[string]string{labelManagedBy: managedBy, labelInstall: in.name}
}

// modelLabels returns the labels of every object of a model.
func (in install) modelLabels(model string) map[string]string {
	labels := in.labels()
	labels[labelModel] = modelHash(model)
	return labels
}

// modelHash returns the value of labelModel for a model.
func modelHash(model string) string { return hashPrefix(model, 16) }

// modelHashOf returns the modelHash of an object's model. An admission webhook may have taken the
// label.
func modelHashOf(o metav1.Object) string {
	return cmp.Or(o.GetLabels()[labelModel], modelHash(o.GetAnnotations()[annotationModel]))
}

// manifest renders the Deployment of a model without a namespace and with 0 replicas. The
// Deployment's name depends on its pod template, so another template is another Deployment.
func (in install) manifest(m Model) (*appsv1.Deployment, error) {
	d, err := in.render(m)
	if err == nil {
		in.setOwnFields(d, m)
	}
	return d, err
}

// render returns the Deployment of a model without what belongs to Sluice.
func (in install) render(m Model) (*appsv1.Deployment, error) {
	base, err := in.baseDeployment(m)
	if err != nil {
		return nil, err
	}
	merged, err := override(base, m.Version, m.launch())
	if err != nil {
		return nil, err
	}
	for _, patch := range m.Patches {
		if merged.Spec.Template, err = podpatch.Apply(merged.Spec.Template, patch); err != nil {
			return nil, err
		}
	}
	if err := checkContainer(merged); err != nil {
		return nil, err
	}
	return merged, nil
}

// launch returns the values for the templates of the engine version.
func (m Model) launch() engines.Launch {
	l := m.Launch
	l.Host, l.Port, l.Sluice = cmp.Or(m.Version.PodHost, defaultHost), enginePort, "sluice"
	if m.Resources != nil {
		l.GPUs = m.Resources.Devices()
	}
	return l
}

// setOwnFields sets the names, labels, selector and replicas, whatever the engine version's own
// template contains.
func (in install) setOwnFields(d *appsv1.Deployment, m Model) {
	labels := in.modelLabels(m.Name)
	slots := strconv.Itoa(m.Version.SlotsOf(m.Launch))
	annotations := map[string]string{annotationModel: m.Name, annotationSlots: slots, annotationPort: strconv.Itoa(enginePort)}
	mergeInto(&d.Spec.Template.Labels, labels)
	mergeInto(&d.Spec.Template.Annotations, annotations)
	delete(d.Spec.Template.Labels, labelDeployment)
	d.Name = in.deploymentName(m.Name, d.Spec.Template, longestName(d))
	d.Namespace, d.GenerateName = "", ""
	annotations[annotationDrain] = cmp.Or(m.DrainTimeout, in.drainTimeout).String()
	mergeInto(&d.Labels, labels)
	mergeInto(&d.Annotations, annotations)
	d.OwnerReferences = nil
	if o := m.Owner; o != nil {
		d.OwnerReferences = []metav1.OwnerReference{{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: types.UID(o.UID)}}
	}
	selector := maps.Clone(labels)
	selector[labelDeployment] = d.Name
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: selector}
	d.Spec.Template.Labels[labelDeployment] = d.Name
	d.Spec.Replicas = new(int32)
	d.Spec.Paused = false
}

// longestName returns how long the name of a Deployment may be.
func longestName(d *appsv1.Deployment) int {
	if hasGroups(d) {
		return maxGroupsName
	}
	return maxLabelLength
}

// deploymentName returns a name that differs between models and between pod templates.
func (in install) deploymentName(model string, template corev1.PodTemplateSpec, longest int) string {
	data, _ := json.Marshal(template) // Marshal cannot fail on plain data.
	return in.objectName(model, "-"+hashPrefix(string(data), 8), longest)
}

// objectName returns a readable name that differs between models and ends with suffix.
func (in install) objectName(model, suffix string, longest int) string {
	tail := "-" + hashPrefix(model, 6) + suffix
	room := min(maxSlugLength, longest-len(in.name)-1-len(tail))
	return in.name + "-" + slug(model, room) + tail
}

// slug returns name reduced to what a DNS label allows: at most `most` characters a-z, 0-9 and "-".
func slug(name string, most int) string {
	isSeparator := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	safe := strings.Join(strings.FieldsFunc(strings.ToLower(name), isSeparator), "-")
	return cmp.Or(strings.TrimRight(safe[:min(most, len(safe))], "-"), "model")
}

// hashPrefix returns the first hexadecimal digits of the SHA-256 of text.
func hashPrefix(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

func mergeInto(to *map[string]string, from map[string]string) {
	if *to == nil {
		*to = map[string]string{}
	}
	maps.Copy(*to, from)
}

// checkContainer returns an error if the engine version's own template has removed the engine's
// container or image.
func checkContainer(d *appsv1.Deployment) error {
	containers := d.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == engineContainer })
	switch {
	case i < 0:
		return fmt.Errorf("the Deployment has no container %q", engineContainer)
	case containers[i].Image == "":
		return errors.New("the engine version has no image")
	}
	return nil
}

// baseDeployment returns the Deployment before the engine version's own template is merged into it.
func (in install) baseDeployment(m Model) (*appsv1.Deployment, error) {
	engine, err := m.container()
	if err != nil {
		return nil, err
	}
	pod := corev1.PodSpec{
		Containers:                    []corev1.Container{engine},
		TerminationGracePeriodSeconds: new(int64(preStopSeconds + stopGraceSeconds)),
		AutomountServiceAccountToken:  new(false),
		// With service links, a Service that is named like an engine would set that engine's
		// environment variables.
		EnableServiceLinks: new(false),
	}
	m.addVolumes(&pod)
	in.setScheduling(m, &pod)
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		Spec: appsv1.DeploymentSpec{
			RevisionHistoryLimit: new(int32),
			Template:             corev1.PodTemplateSpec{Spec: pod},
		},
	}, nil
}

// container returns the engine's container.
func (m Model) container() (corev1.Container, error) {
	command, err := m.Version.Render(m.launch())
	if err != nil {
		return corev1.Container{}, err
	}
	for i, argument := range command {
		command[i] = m.escapeDollars(argument)
	}
	env, err := m.environment()
	if err != nil {
		return corev1.Container{}, err
	}
	c := corev1.Container{
		Name: engineContainer, Image: m.Version.Image, Command: command, Env: env,
		Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: enginePort}},
		Resources: m.requirements(),
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: preStopSeconds}}},
	}
	c.ReadinessProbe = probe(readiness(m.Version), time.Second)
	if c.StartupProbe = probe(m.Version.Ready, time.Second); c.StartupProbe != nil {
		start := cmp.Or(m.StartTimeout, defaultStartTimeout).Seconds()
		c.StartupProbe.TerminationGracePeriodSeconds = new(int64(restartGraceSeconds))
		c.StartupProbe.FailureThreshold = int32(max(1, math.Ceil(start/float64(c.StartupProbe.PeriodSeconds))))
	}
	if c.LivenessProbe = probe(m.Version.Health, 10*time.Second); c.LivenessProbe != nil {
		c.LivenessProbe.TimeoutSeconds = 2 * probeTimeoutSeconds
		c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(restartGraceSeconds))
	}
	return c, nil
}

// environment returns the engine's environment. POD_IP comes first, because a value may refer only
// to earlier variables.
func (m Model) environment() ([]corev1.EnvVar, error) {
	values, err := m.Version.RenderEnv(m.launch())
	if err != nil {
		return nil, err
	}
	for name, value := range values {
		values[name] = m.escapeDollars(value)
	}
	for name, value := range m.Env {
		values[name] = strings.ReplaceAll(strings.ReplaceAll(value, "$", "$$"), "$"+podIP, podIP)
	}
	env := []corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, secret := m.Secrets[name]; !secret && name != "POD_IP" {
			env = append(env, corev1.EnvVar{Name: name, Value: values[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Secrets)) {
		env = append(env, m.Secrets[name].variable(name))
	}
	return env, nil
}

// variable returns an environment variable with the value of the entry.
func (k SecretKey) variable(name string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: k.Name}, Key: k.Key,
	}}}
}

// podIP is what Kubernetes replaces by the pod's address.
const podIP = "$(POD_IP)"

// escapeDollars keeps Kubernetes from expanding $(NAME), which a process on a node would see
// literally. It does not escape podIP if the engine is to listen there.
func (m Model) escapeDollars(text string) string {
	text = strings.ReplaceAll(text, "$", "$$")
	if m.Version.PodHost == podIP {
		text = strings.ReplaceAll(text, "$"+podIP, podIP)
	}
	return text
}

// readiness returns the probe of a replica that has started. What tells that an engine is warm may
// cost it a token or wait behind requests; what tells that it is healthy does not.
func readiness(v engines.Version) engines.Probe {
	return engines.Probe{Path: cmp.Or(v.Health.Path, v.Ready.Path), Every: v.Ready.Every}
}

// probe returns nil if the engine has no path for the probe.
func probe(p engines.Probe, standard time.Duration) *corev1.Probe {
	if p.Path == "" {
		return nil
	}
	every := math.Ceil(cmp.Or(p.Every, standard).Seconds())
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: p.Path, Port: intstr.FromInt32(enginePort)}},
		PeriodSeconds:    int32(max(1, every)),
		TimeoutSeconds:   probeTimeoutSeconds,
		FailureThreshold: 3,
	}
}

func (m Model) requirements() corev1.ResourceRequirements {
	r := m.perHost()
	if r == nil {
		return corev1.ResourceRequirements{}
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	if r.CPU > 0 {
		requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(math.Ceil(r.CPU*1000)), resource.DecimalSI)
	}
	if r.Memory > 0 {
		memory := *resource.NewQuantity(r.Memory, resource.BinarySI)
		requests[corev1.ResourceMemory], limits[corev1.ResourceMemory] = memory, memory
	}
	if r.GPU > 0 {
		name := cmp.Or(m.GPUResource, defaultGPUResource)
		// Kubernetes sets the request to the limit.
		limits[corev1.ResourceName(name)] = *resource.NewQuantity(int64(r.Devices()), resource.DecimalSI)
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// addVolumes adds the model's claims. For several GPUs it also adds shared memory, because the
// default of 64 MiB is too small for communication between GPUs.
func (m Model) addVolumes(pod *corev1.PodSpec) {
	engine := &pod.Containers[0]
	if m.Resources != nil && m.Resources.Devices() > 1 {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "shm", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
		}})
		engine.VolumeMounts = append(engine.VolumeMounts, corev1.VolumeMount{Name: "shm", MountPath: "/dev/shm"})
	}
	for i, v := range m.Volumes {
		name := "claim-" + strconv.Itoa(i)
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Claim, ReadOnly: true},
		}})
		engine.VolumeMounts = append(engine.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: v.Path, ReadOnly: true})
	}
}

// setScheduling sets the scheduler's preferences for nodes by Model.Placement.
func (in install) setScheduling(m Model, pod *corev1.PodSpec) {
	own := &metav1.LabelSelector{MatchLabels: in.modelLabels(m.Name)}
	if m.Placement != "pack" {
		pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: own,
		}}
		return
	}
	near := func(weight int32, whom *metav1.LabelSelector) corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: corev1.PodAffinityTerm{
			TopologyKey: corev1.LabelHostname, LabelSelector: whom,
		}}
	}
	pod.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			near(100, own), near(50, &metav1.LabelSelector{MatchLabels: in.labels()}),
		},
	}}
}
