package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/engines/podpatch"
)

const (
	// roleLoader is the value of labelRole of the pods that load weights.
	roleLoader = "loader"
	// labelWeights is the name of the Job, on the pods of a Job that loads weights.
	labelWeights = "sluice.dev/weights"
	// loaderPort is the port on which a loader tells how far it is.
	loaderPort = 8001
	// loaderRetry is how long a failed Job stays before it is made again.
	loaderRetry = 5 * time.Minute
	// loaderUser is the user in the image of Sluice. The volume is given to its group.
	loaderUser = 65532
)

// Weights are fetched once into a volume, by a Job, before pods of the model are made. They are
// comparable.
type Weights struct {
	// Claim is the PersistentVolumeClaim of the namespace. If Size is not 0, the launcher makes it
	// with this size in bytes and this storage class; an empty class is the cluster's default. It
	// enlarges a claim that is smaller, and shrinks none.
	Claim        string
	Size         int64
	StorageClass string
	// Path is where the volume is mounted in the loader. Model.Volumes mount it in the pods.
	Path string
	// Link is the name, below Path, of a link to what the engine loads.
	Link string
	// Image has the program sluice.
	Image string
	// Token is the entry of a Secret with the token for the hub. The zero value is none.
	Token SecretKey
	// Endpoint is the URL of the hub. Empty means huggingface.co.
	Endpoint                   string
	Repository, Revision, File string
	// GGUF says that the engine loads GGUF files.
	GGUF bool
	// Pod is a strategic merge patch over the template of the loader's pod, as JSON. Empty: none.
	Pod string `json:",omitempty"`
}

// jobName returns the name of the Job that fetches the weights. Other weights have another Job. How
// they are fetched does not count, because weights that are there need not be fetched again.
func (in install) jobName(w Weights) string {
	w.Image, w.Token, w.Size, w.StorageClass, w.Pod = "", SecretKey{}, 0, "", ""
	data, _ := json.Marshal(w) // Marshal cannot fail on plain data.
	return in.name + "-weights-" + hashPrefix(string(data), 12)
}

// loaderHash returns what distinguishes the loader from one that fetches in another way.
func (w Weights) loaderHash() string {
	data, _ := json.Marshal(w.container()) // Marshal cannot fail on plain data.
	return hashPrefix(string(data)+w.Pod, 12)
}

// loader returns the Job that fetches the weights. Its failed pods are not restarted but stay, so
// that they tell why until the Job is made again. Kubernetes deletes restarted ones when the Job
// fails. The error is that of the patch.
func (in install) loader(w Weights) (*batchv1.Job, error) {
	name := in.jobName(w)
	labels := in.labels()
	labels[labelRole], labels[labelWeights] = roleLoader, name
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels,
			Annotations: map[string]string{annotationModel: w.Repository, annotationLoader: w.loaderHash()}},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(4)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: new(true), RunAsUser: new(int64(loaderUser)), RunAsGroup: new(int64(loaderUser)), FSGroup: new(int64(loaderUser)),
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Containers: []corev1.Container{w.container()},
				Volumes: []corev1.Volume{{Name: "weights", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.Claim},
				}}},
			}},
		},
	}
	if w.Pod == "" {
		return j, nil
	}
	var patch map[string]any
	err := json.Unmarshal([]byte(w.Pod), &patch)
	if err == nil {
		j.Spec.Template, err = podpatch.Apply(j.Spec.Template, patch)
	}
	return j, err
}

func (w Weights) container() corev1.Container {
	command := []string{"sluice", "fetch", w.Repository, "--cache-dir", w.Path, "--link", w.Link, "--listen", ":" + strconv.Itoa(loaderPort)}
	for _, option := range []struct{ flag, value string }{{"--endpoint", w.Endpoint}, {"--file", w.File}, {"--revision", w.Revision}} {
		if option.value != "" {
			command = append(command, option.flag+"="+option.value)
		}
	}
	if w.GGUF {
		command = append(command, "--gguf")
	}
	var env []corev1.EnvVar
	if w.Token != (SecretKey{}) {
		env = append(env, w.Token.variable("HF_TOKEN"))
	}
	return corev1.Container{
		Name: roleLoader, Image: w.Image, Command: command, Env: env,
		Ports:                    []corev1.ContainerPort{{Name: "progress", ContainerPort: loaderPort}},
		VolumeMounts:             []corev1.VolumeMount{{Name: "weights", MountPath: w.Path}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	}
}

// weightsWrite is the name of the write that makes or removes a Job.
func weightsWrite(job string) string { return "weights " + job }

// reconcileWeights adds the writes that make the Jobs which the wanted models need, and that remove
// those that no model needs. It removes none if keep is true, because models of which it does not
// know the weights may need them. It returns the Jobs that have ended well.
func (c *cluster) reconcileWeights(writes map[string]write, models map[string]wanted, keep bool, now time.Time) (loaded map[string]bool) {
	loaded = map[string]bool{}
	if !c.jobs.hasSynced() {
		return loaded
	}
	needed := c.neededWeights(models)
	sizes, pods := claimSizes(needed), c.pods.list(now)
	for _, j := range c.jobs.list(now) {
		w, known := needed[j.Name]
		condition, since := loaderEnd(j, newestLoader(pods, j.Name))
		remove := !known && !keep
		switch {
		case condition == batchv1.JobComplete && w != nil && c.hasLost(*w, j):
			remove = true
		case condition == batchv1.JobComplete:
			loaded[j.Name] = true
		case condition == batchv1.JobFailed && now.Sub(since) >= loaderRetry:
			remove = remove || known
		case w != nil && j.Annotations[annotationLoader] != w.loaderHash():
			remove = true // what has changed may be what lets it end well
		}
		if remove && j.DeletionTimestamp == nil {
			writes[weightsWrite(j.Name)] = func(ctx context.Context) (bool, error) { return false, c.deleteJob(ctx, j) }
		}
		delete(needed, j.Name)
	}
	for name, w := range needed {
		if w != nil {
			writes[weightsWrite(name)] = func(ctx context.Context) (bool, error) { return false, c.createLoader(ctx, name, *w) }
		}
	}
	c.enlargeClaims(writes, sizes, now)
	return loaded
}

// neededWeights returns the weights of the models by the names of their Jobs. They are nil if no
// model with these weights has a wanted replica.
func (in install) neededWeights(models map[string]wanted) map[string]*Weights {
	needed := map[string]*Weights{}
	for _, hash := range slices.Sorted(maps.Keys(models)) {
		m := models[hash]
		if m.Weights == nil {
			continue
		}
		name := in.jobName(*m.Weights)
		if m.Desired > 0 {
			needed[name] = m.Weights
		} else if _, ok := needed[name]; !ok {
			needed[name] = nil
		}
	}
	return needed
}

// loaderEnd returns how and when a Job or its loader has ended, as jobEnd does. pod is the newest
// pod with the label of the Job, or nil. It may still be one of the Job before.
func loaderEnd(j *batchv1.Job, pod *corev1.Pod) (batchv1.JobConditionType, time.Time) {
	if condition, since := jobEnd(j); condition != "" || pod == nil || !metav1.IsControlledBy(pod, j) {
		return condition, since
	}
	return loaderPodEnd(pod)
}

// loaderPodEnd returns how and when the loader in a pod that goes on has ended, as jobEnd does. A
// pod and its Job go on as long as another container runs, such as one that an admission webhook
// has added.
func loaderPodEnd(pod *corev1.Pod) (batchv1.JobConditionType, time.Time) {
	if hasFinished(pod) || pod.DeletionTimestamp != nil {
		return "", time.Time{}
	}
	loader := containerStatus(pod.Status.ContainerStatuses, roleLoader)
	if loader == nil || loader.State.Terminated == nil {
		return "", time.Time{}
	}
	end := loader.State.Terminated
	if end.ExitCode == 0 {
		return batchv1.JobComplete, end.FinishedAt.Time
	}
	return batchv1.JobFailed, end.FinishedAt.Time
}

// jobEnd returns how and when a Job has ended: JobComplete, JobFailed, or "" if it has not.
func jobEnd(j *batchv1.Job) (batchv1.JobConditionType, time.Time) {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type, c.LastTransitionTime.Time
		}
	}
	return "", time.Time{}
}

// createLoader makes the claim, if the launcher has to, and the Job.
func (c *cluster) createLoader(ctx context.Context, name string, w Weights) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	options := metav1.CreateOptions{FieldManager: fieldManager}
	uid, err := c.createClaim(ctx, w, options)
	if err != nil {
		return err
	}
	job, err := c.loader(w)
	if err != nil {
		return err
	}
	job.Annotations[annotationClaim] = string(uid)
	jobs := c.client.BatchV1().Jobs(c.location.namespace)
	made, err := jobs.Create(ctx, job, options)
	if apierrors.IsAlreadyExists(err) {
		if made, err = jobs.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return ignoreNotFound(err)
		}
		return keptLabels(made, c.labels()) // The watch will show it.
	}
	if err == nil {
		err = keptLabels(made, c.labels())
	}
	if err == nil {
		c.jobs.recordWrite(made, "", time.Now())
		c.Log.Info("weights being fetched", zap.String("job", name), zap.String("repository", w.Repository))
	}
	return err
}

// deleteJob deletes a Job and its pods.
func (c *cluster) deleteJob(ctx context.Context, j *batchv1.Job) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &j.UID}, PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
	return ignoreNotFound(err)
}

// isLoader reports whether the pod loads weights.
func isLoader(p *corev1.Pod) bool { return p.Labels[labelRole] == roleLoader }

// newestLoader returns the newest pod of a Job that loads weights, or nil.
func newestLoader(pods []*corev1.Pod, job string) *corev1.Pod {
	var newest *corev1.Pod
	for _, p := range pods {
		if isLoader(p) && p.Labels[labelWeights] == job && (newest == nil ||
			cmp.Or(p.CreationTimestamp.Compare(newest.CreationTimestamp.Time), cmp.Compare(p.Name, newest.Name)) > 0) {
			newest = p
		}
	}
	return newest
}
