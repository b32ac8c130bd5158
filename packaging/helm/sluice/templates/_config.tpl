{{/* The content of sluice.yaml: config, and what other values and the release add to it. */}}
{{- define "sluice.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if hasKey $config "kubernetes" -}}
{{- $_ := set $config "kubernetes" (merge (deepCopy $config.kubernetes) (dict "name" (include "sluice.installation" .))) -}}
{{- end -}}
{{- with .Values.tls -}}
{{- if .secret -}}
{{- $tls := dict "cert" "/etc/sluice-listen-tls/tls.crt" "key" "/etc/sluice-listen-tls/tls.key" -}}
{{- if .clientCA -}}
{{- $_ := set $tls "client_ca" "/etc/sluice-listen-tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- end -}}
{{- end -}}
{{- if .Values.envoys.enabled -}}
{{- $_ := set $config "control" (dict
  "listen" "0.0.0.0:9444"
  "cert" "/etc/sluice-tls/tls.crt"
  "key" "/etc/sluice-tls/tls.key"
  "client_ca" "/etc/sluice-tls/ca.crt"
  "allowed" (list .Values.envoys.clientName)
  "addresses" (list (printf "%s-control:9444" (include "sluice.name" .)))
  "server_name" .Values.envoys.serverName) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/* A file of the Envoys in pods of their own, with the names of this release. The arguments are the
root and the name of the file. */}}
{{- define "sluice.envoyFile" -}}
{{- $root := index . 0 -}}
{{- $root.Files.Get (printf "files/%s" (index . 1))
  | replace "\"sluice-control\"" (printf "%s-control" (include "sluice.name" $root) | quote)
  | replace "\"gateways.sluice\"" ($root.Values.envoys.serverName | quote)
  | trim -}}
{{- end }}

{{/* Refuses values that do not fit together. */}}
{{- define "sluice.check" -}}
{{- $c := .Values.config -}}
{{- $loopback := regexMatch "^(127\\.|localhost:|\\[::1\\]:)" ($c.admin | default "127.0.0.1:9090") -}}
{{- if not .Values.existingConfig -}}
  {{- if and (not $loopback) (not $c.admin_auth) -}}
    {{- fail (printf "config.admin is %s, which other pods reach: set config.admin_auth, or set config.admin to 127.0.0.1:9090" $c.admin) -}}
  {{- end -}}
  {{- if and (regexMatch "^rediss?://[^/]*@" ($c.redis | default "")) (eq .Values.configKind "ConfigMap") -}}
    {{- fail "config.redis has a password: set configKind to Secret, or name a Secret of yours in existingConfig" -}}
  {{- end -}}
{{- end -}}
{{- if .Values.adminIngress.enabled -}}
  {{- if or $loopback (not .Values.adminIngress.host) -}}
    {{- fail "adminIngress needs its host, and config.admin off loopback, such as 0.0.0.0:9090, with config.admin_auth" -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.envoys.enabled (hasKey $c "control") -}}
  {{- fail "envoys.enabled writes config.control: remove config.control" -}}
{{- end -}}
{{- if and .Values.tls.secret (hasKey $c "tls") -}}
  {{- fail "tls.secret writes config.tls: remove config.tls" -}}
{{- end -}}
{{- if and (.Values.peers).enabled (hasKey $c "peers") -}}
  {{- fail "peers.enabled gives each pod its own address: remove config.peers" -}}
{{- end -}}
{{- if and (.Values.peers).enabled (not $c.redis) (not .Values.existingConfig) -}}
  {{- fail "peers.enabled needs config.redis, by which gateways find each other" -}}
{{- end -}}
{{- if and $c.peers (not .Values.existingConfig) -}}
  {{- fail (printf "config.peers is %s, which only one pod can be: remove it, and set peers.enabled" $c.peers) -}}
{{- end -}}
{{- $drain := $c.drain_timeout | default "30s" | toString -}}
{{- $now := now -}}
{{- $needed := sub (date_modify $drain $now | unixEpoch) (unixEpoch $now) | add (.Values.envoys.enabled | ternary 0 10) -}}
{{- if and (not .Values.existingConfig) (lt (int64 .Values.terminationGracePeriodSeconds) $needed) -}}
  {{- fail (printf "terminationGracePeriodSeconds is %d, and a pod needs %sconfig.drain_timeout, %s, so that its streams are not cut: set %d or more" (int64 .Values.terminationGracePeriodSeconds) (.Values.envoys.enabled | ternary "" "10 s before and ") $drain $needed) -}}
{{- end -}}
{{- if and .Values.tls.clientCA (not .Values.tls.secret) -}}
  {{- fail "tls.clientCA needs tls.secret" -}}
{{- end -}}
{{- end }}
