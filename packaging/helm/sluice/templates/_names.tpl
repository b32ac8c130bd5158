{{/* The name of all objects. A Service takes no dot. */}}
{{- define "sluice.name" -}}
{{- $name := .Values.fullnameOverride | default (contains "sluice" .Release.Name | ternary .Release.Name (printf "%s-sluice" .Release.Name)) -}}
{{- $name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* The name of the installation, kubernetes.name. Sluice takes at most 20 characters. */}}
{{- define "sluice.installation" -}}
{{- $name := include "sluice.name" . -}}
{{- if gt (len $name) 20 -}}
{{- printf "%s-%s" ($name | trunc 13 | trimSuffix "-") (sha256sum $name | trunc 6) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end }}

{{/* The labels of an object: the arguments are the root and the component's name. */}}
{{- define "sluice.labels" -}}
{{- $root := index . 0 -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The labels by which a component's pods are found: the arguments are as those of sluice.labels. */}}
{{- define "sluice.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- end }}

{{- define "sluice.serviceAccount" -}}
{{- .Values.serviceAccount.create | ternary (.Values.serviceAccount.name | default (include "sluice.name" .)) (.Values.serviceAccount.name | default "default") -}}
{{- end }}

{{/* The port of an address such as 0.0.0.0:8080. */}}
{{- define "sluice.port" -}}
{{- regexReplaceAll "^.*:" . "" -}}
{{- end }}

{{- define "sluice.configName" -}}
{{- .Values.existingConfig | default (include "sluice.name" .) -}}
{{- end }}

{{/* The security of all pods and of all containers. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Pods of a component keep away from each other: the arguments are as those of sluice.labels. */}}
{{- define "sluice.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "sluice.selector" . | nindent 6 }}
{{- end }}
