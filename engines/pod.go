package engines

// The functions below return what pods of a built-in engine need beyond the usual, as YAML of a
// Deployment; see Version.Kubernetes. The launcher sets everything else: image, command, probes,
// shared memory for several GPUs.

// keeps gives the pod a volume for what its engine downloads. The volume outlives the container, so
// that an engine that has crashed starts again with its weights. It is deleted with the pod.
// Nothing is set in the environment: an operator who sets HF_HOME and the like means another path.
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

// keepsFromHub is keeps for engines that only download models of the registry huggingface.
func keepsFromHub(path string) string {
	return `{{if eq .Registry "huggingface"}}` + keeps(path) + `{{end}}`
}

// hubCache is where the libraries of Hugging Face store models when they run as root. They do so in
// the images of vLLM, SGLang, llama.cpp and llama-cpp-python.
const hubCache = "/root/.cache/huggingface"

// podAddress is the PodHost of engines that listen on one family only. Kubernetes replaces it.
const podAddress = "$(POD_IP)"

// sglangPod keeps the probes of /health from generating a token (http_server.py of SGLang). Without
// it, an idle server computes one for each probe. SGLang's watchdog ends a server that hangs.
func sglangPod() string {
	return `
spec:
  template:
    spec:
      containers:
      - name: engine
        env: [{name: SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION, value: "false"}]
        {{- if eq .Registry "huggingface"}}
        volumeMounts: [{name: downloads, mountPath: ` + hubCache + `}]
      volumes: [{name: downloads, emptyDir: {}}]
        {{- end}}
`
}

// llamaServerPod sets PATH, because the images of llama.cpp have their programs in /app, and picks
// the image for GPUs if there are any (.devops and docs/docker.md of llama.cpp).
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

// teiPod picks the image: the usual ones are for GPUs of compute capability 8 (A100 to L40S),
// another one is for CPUs. Both store models in /data (their Dockerfiles).
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

// teiAnyGPUPod is teiPod for the image with a program for each kind of GPU,
// text-embeddings-router-75 and so on. Its /entrypoint.sh looks at the GPU and runs the right one
// with the same arguments, so an init container links it under the name of the command. The script
// fails if there is no GPU (cuda-all-entrypoint.sh).
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
