package kubernetes

import (
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
)

// Labels of everything that is ours. Nothing without the first two is ever touched.
const (
	labelManagedBy  = "app.kubernetes.io/managed-by"
	managedBy       = "sluice"
	labelInstall    = "sluice.dev/install"
	labelModel      = "sluice.dev/model-hash" // names of models may hold what labels may not
	labelDeployment = "sluice.dev/deployment" // of a pod: its Deployment's name, which is also the selector
	labelRole       = "sluice.dev/role"
)

// Annotations.
const (
	annotationModel    = "sluice.dev/model"
	annotationSlots    = "sluice.dev/slots"
	annotationPort     = "sluice.dev/port"
	annotationDrain    = "sluice.dev/drain-timeout"
	annotationDraining = "sluice.dev/draining" // of a pod: since when
	annotationLoad     = "sluice.dev/load"     // of a gateway's lease
	annotationCost     = "controller.kubernetes.io/pod-deletion-cost"
	annotationMade     = "sluice.dev/made"     // of a pod template: tells a Deployment and its pods from a later one of the same name
	annotationRecalled = "sluice.dev/recalled" // of a Deployment: when a pod was last taken back that was marked to leave
)

const (
	// container is the engine's name in the pod.
	engineContainer = "engine"
	// port is where the engine listens. Every pod has an address of its own.
	enginePort = 8000
	// standardGPU is what GPUs are asked for as.
	defaultGPUResource = "nvidia.com/gpu"
	// leaveEndpoints is how long a pod that was told to end goes on serving: services that are not ours may still send to it.
	preStopSeconds = 5
	// stopGrace is what the engine has after that, in seconds.
	stopGraceSeconds = 30
	// probeTimeout in seconds is generous: an engine in the middle of a large prefill answers late.
	probeTimeoutSeconds = 10
	// standardStart is Model.StartTimeout's default.
	defaultStartTimeout = 10 * time.Minute
	// longestLabel is what Kubernetes takes.
	maxLabelLength = 63
	// longestSlug keeps names readable.
	maxSlugLength = 40
)

// install is what all objects of one installation have in common.
type install struct {
	name         string
	drainTimeout time.Duration
}

// labels are those of every object of the installation.
func (in install) labels() map[string]string {
	return map[string]string{labelManagedBy: managedBy, labelInstall: in.name}
}

// manifest makes the Deployment of a model, without a namespace and for no replicas. Its name tells its pod template: another template is
// another Deployment.
func (in install) manifest(m Model) (*appsv1.Deployment, error) {
	ours, err := in.baseDeployment(m)
	if err != nil {
		return nil, err
	}
	merged, err := override(ours, m.Version, m.launch())
	if err != nil {
		return nil, err
	}
	if err := checkContainer(merged); err != nil {
		return nil, err
	}
	in.setOwnFields(merged, m)
	return merged, nil
}

// launch is what the templates of the model's version are rendered with.
func (m Model) launch() engines.Launch {
	l := m.Launch
	l.Host, l.Port, l.Sluice = "0.0.0.0", enginePort, "sluice"
	if m.Resources != nil {
		l.GPUs = m.Resources.Devices()
	}
	return l
}

// claim makes the Deployment ours, whatever the engine's own template says: names, labels, selector, number.
func (in install) setOwnFields(d *appsv1.Deployment, m Model) {
	labels := in.labels()
	labels[labelModel] = hashPrefix(m.Name, 16)
	slots := strconv.Itoa(m.slots())
	annotations := map[string]string{annotationModel: m.Name, annotationSlots: slots, annotationPort: strconv.Itoa(enginePort)}
	mergeInto(&d.Spec.Template.Labels, labels)
	mergeInto(&d.Spec.Template.Annotations, annotations)
	delete(d.Spec.Template.Labels, labelDeployment)
	d.Name = in.deploymentName(m.Name, d.Spec.Template)
	d.Namespace, d.GenerateName = "", ""
	annotations[annotationDrain] = orDefault(m.DrainTimeout, in.drainTimeout).String()
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

// deploymentName is readable, and differs for models and for templates that differ.
func (in install) deploymentName(model string, template corev1.PodTemplateSpec) string {
	data, _ := json.Marshal(template) // plain data: it always marshals
	tail := "-" + hashPrefix(model, 6) + "-" + hashPrefix(string(data), 8)
	room := min(maxSlugLength, maxLabelLength-len(in.name)-1-len(tail))
	return in.name + "-" + slug(model, room) + tail
}

// slug is what of a name a DNS label can hold: at most so many of a-z, 0-9 and -.
func slug(name string, most int) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	for strings.Contains(safe, "--") {
		safe = strings.ReplaceAll(safe, "--", "-")
	}
	safe = strings.Trim(safe, "-")
	if len(safe) > most {
		safe = strings.TrimRight(safe[:most], "-")
	}
	if safe == "" {
		return "model"
	}
	return safe
}

// digest is the beginning of a hash, in so many hexadecimal digits.
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

// usable tells what an engine's own template has spoilt.
func checkContainer(d *appsv1.Deployment) error {
	for _, c := range d.Spec.Template.Spec.Containers {
		if c.Name != engineContainer {
			continue
		}
		if c.Image == "" {
			return errors.New("the engine version has no image")
		}
		return nil
	}
	return fmt.Errorf("the Deployment has no container %q", engineContainer)
}

// usual is the Deployment before the engine's own template is merged over it.
func (in install) baseDeployment(m Model) (*appsv1.Deployment, error) {
	engine, err := m.container()
	if err != nil {
		return nil, err
	}
	pod := corev1.PodSpec{
		Containers:                    []corev1.Container{engine},
		TerminationGracePeriodSeconds: new(int64(preStopSeconds + stopGraceSeconds)),
		AutomountServiceAccountToken:  new(false),
		// Or a Service that is called like an engine would set the variables by which that engine is configured.
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

// container is the engine's.
func (m Model) container() (corev1.Container, error) {
	command, err := m.Version.Render(m.launch())
	if err != nil {
		return corev1.Container{}, err
	}
	for i, argument := range command {
		command[i] = escapeDollars(argument)
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
	if c.ReadinessProbe = probe(m.Version.Ready, time.Second); c.ReadinessProbe != nil {
		c.StartupProbe = c.ReadinessProbe.DeepCopy()
		start := orDefault(m.StartTimeout, defaultStartTimeout).Seconds()
		c.StartupProbe.FailureThreshold = int32(max(1, math.Ceil(start/float64(c.StartupProbe.PeriodSeconds))))
	}
	if c.LivenessProbe = probe(m.Version.Health, 10*time.Second); c.LivenessProbe != nil {
		c.LivenessProbe.TimeoutSeconds = 2 * probeTimeoutSeconds
	}
	return c, nil
}

// environment of the engine. The pod's address comes first: values may only name what stands before them.
func (m Model) environment() ([]corev1.EnvVar, error) {
	values, err := m.Version.RenderEnv(m.launch())
	if err != nil {
		return nil, err
	}
	for name, value := range values {
		values[name] = escapeDollars(value)
	}
	for name, value := range m.Env {
		values[name] = strings.ReplaceAll(escapeDollars(value), "$$(POD_IP)", "$(POD_IP)")
	}
	env := []corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, secret := m.Secrets[name]; !secret && name != "POD_IP" {
			env = append(env, corev1.EnvVar{Name: name, Value: values[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Secrets)) {
		secret := m.Secrets[name]
		env = append(env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name}, Key: secret.Key,
		}}})
	}
	return env, nil
}

// literal keeps Kubernetes from expanding $(NAME) where a local replica would see just that.
func escapeDollars(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// slots is how many requests a replica works on at once; 0 is unknown.
func (m Model) slots() int {
	return m.Version.Slots.Count(m.Version.Complete(m.Launch.Task, m.Launch.Variables))
}

// probe is nil where the engine has no path for it.
func probe(p engines.Probe, standard time.Duration) *corev1.Probe {
	if p.Path == "" {
		return nil
	}
	every := math.Ceil(orDefault(p.Every, standard).Seconds())
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: p.Path, Port: intstr.FromInt32(enginePort)}},
		PeriodSeconds:    int32(max(1, every)),
		TimeoutSeconds:   probeTimeoutSeconds,
		FailureThreshold: 3,
	}
}

func (m Model) requirements() corev1.ResourceRequirements {
	r := m.Resources
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
		name := m.GPUResource
		if name == "" {
			name = defaultGPUResource
		}
		limits[corev1.ResourceName(name)] = *resource.NewQuantity(int64(r.Devices()), resource.DecimalSI) // requests are the same by rule
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// mount gives the pod its claims, and shared memory where GPUs talk through it: the usual 64 MiB are too little for them.
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

// place says where the scheduler should rather put the pod.
func (in install) setScheduling(m Model, pod *corev1.PodSpec) {
	model := in.labels()
	model[labelModel] = hashPrefix(m.Name, 16)
	own := &metav1.LabelSelector{MatchLabels: model}
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

func orDefault(d, standard time.Duration) time.Duration {
	if d <= 0 {
		return standard
	}
	return d
}
