package engines

// What pods of the built-in engines need that is not so for all of them, as YAML of a Deployment: see Version.Kubernetes. Everything else is
// the launcher's: image, command, probes, shared memory for several GPUs.

// keeps gives the pod a volume for what its engine downloads. It outlives the container, so that an engine that has crashed starts again with
// the weights that it had, and goes with the pod. Nothing is said in the environment: who sets HF_HOME and the like means another place.
func keeps(path string) string {
	return `
spec:
  template:
    spec:
      containers:
      - name: engine
        volumeMounts: [{name: downloads, mountPath: ` + path + `}]
      volumes: [{name: downloads, emptyDir: {}}]
`
}

// keepsFromHub is keeps for engines that download only what comes from huggingface.
func keepsFromHub(path string) string {
	return `{{if eq .Registry "huggingface"}}` + keeps(path) + `{{end}}`
}

// hubCache is where the libraries of Hugging Face keep models when they run as root, as they do in the images of vLLM, SGLang, llama.cpp and
// llama-cpp-python.
const hubCache = "/root/.cache/huggingface"

// llamaServerPod: the images of llama.cpp have their programs in /app, which is not on $PATH, and only some can use a GPU (.devops and
// docs/docker.md of llama.cpp).
const llamaServerPod = `
spec:
  template:
    spec:
      containers:
      - name: engine
        {{- if .GPUs}}
        image: ghcr.io/ggml-org/llama.cpp:server-cuda
        {{- end}}
        env: [{name: PATH, value: "/app:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}]
        {{- if eq .Registry "huggingface"}}
        volumeMounts: [{name: downloads, mountPath: ` + hubCache + `}]
      volumes: [{name: downloads, emptyDir: {}}]
        {{- end}}
`

// teiPod: the images are for GPUs of compute capability 8 (A100 to L40S) or, without a GPU, for CPUs; both keep models in /data (their
// Dockerfiles).
func teiPod(version string) string {
	return `
spec:
  template:
    spec:
      containers:
      - name: engine
        {{- if not .GPUs}}
        image: ` + teiImage + `cpu-` + version + `
        {{- end}}
        volumeMounts: [{name: downloads, mountPath: /data}]
      volumes: [{name: downloads, emptyDir: {}}]
`
}

// teiAnyGPUPod is teiPod for the image that has a program for each kind of GPU, text-embeddings-router-75 and so on, and /entrypoint.sh,
// which looks at the GPU and runs the right one with the same arguments: here that is put under the name of the command. It
// ends at once where there is no GPU (cuda-all-entrypoint.sh).
func teiAnyGPUPod(version string) string {
	return `{{if not .GPUs}}` + teiPod(version) + `{{else}}
spec:
  template:
    spec:
      initContainers:
      - name: program
        image: {{.Image}}
        command: [ln, -sf, /entrypoint.sh, /program/text-embeddings-router]
        volumeMounts: [{name: program, mountPath: /program}]
      containers:
      - name: engine
        env: [{name: PATH, value: "/program:/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}]
        volumeMounts:
        - {name: downloads, mountPath: /data}
        - {name: program, mountPath: /program}
      volumes:
      - {name: downloads, emptyDir: {}}
      - {name: program, emptyDir: {}}
{{end}}`
}
