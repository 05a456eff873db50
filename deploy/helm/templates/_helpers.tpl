{{/* Names are fixed: there is one of these systems per hub, and commands in the documentation shall fit everywhere. */}}

{{- define "dsf.namespace" -}}
{{ .Values.hubSetting.namespace | default .Release.Namespace }}
{{- end }}

{{- /* URL of the documentation, for readers of the notes who have no clone. */}}
{{- define "dsf.pages" -}}
{{ index .Chart.Sources 0 }}/blob/main/docs
{{- end }}

{{- define "dsf.labels" -}}
app.kubernetes.io/name: dynamic-scoring-framework
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* (dict "root" $ "component" "beat") */}}
{{- define "dsf.componentLabels" -}}
{{ include "dsf.labels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "dsf.selector" -}}
app.kubernetes.io/name: dynamic-scoring-framework
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Namespace of the agent. Here and below: a value of upstream's chart may be empty or null, as in its own files. */}}
{{- define "dsf.agentNamespace" -}}
{{ .Values.spokeSetting.namespace | default "dynamic-scoring" }}
{{- end }}

{{/* "true" or "": whether this image is upstream's, which contains none of our programs. Upstream's own values files
name it, so it is ignored; a mirror of it is a decision of somebody who has to name another image instead. */}}
{{- define "dsf.isUpstreamImage" -}}
{{- $name := toString (default "" .) -}}
{{- if regexMatch "(^|/)dynamic-scoring-(controller|addon)([:@].*)?$" $name -}}
{{- if not (regexMatch "^quay[.]io/open-cluster-management/dynamic-scoring-[a-z]+([:@].*)?$" $name) -}}
{{- fail (printf "%s is an image of the upstream project, which does not contain this one: mirror ghcr.io/open-cluster-management-io/dynamic-scoring-framework (hub) and dynamic-scoring-agent (agents) under these names, and name them in hubSetting.resourceController.image and spokeSetting.agent.image" $name) -}}
{{- end -}}
true
{{- end -}}
{{- end }}

{{/* "true" or "": whether this tag is one of upstream's: the name of the image is the chart's own, and no release of this
project has such a tag. (the values of an image) */}}
{{- define "dsf.isUpstreamTag" -}}
{{- $image := . | default dict -}}
{{- $tag := toString (default "" $image.tag) -}}
{{- if and $tag (not $image.name) (not (regexMatch "^[0-9]+[.][0-9]+[.][0-9]+([-.][0-9A-Za-z.-]+)?$" $tag)) -}}true{{- end -}}
{{- end }}

{{/* (dict "root" $ "image" .Values...image "name" that without one "tag" that without one) */}}
{{- define "dsf.image" -}}
{{- $image := .image | default dict -}}
{{- if include "dsf.isUpstreamImage" $image.name -}}
{{- $image = dict -}}
{{- else if include "dsf.isUpstreamTag" $image -}}
{{- $image = omit $image "tag" -}}
{{- end -}}
{{- $name := $image.name | default .name -}}
{{- with (.root.Values.global).imageRegistry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $name "") -}}
{{- end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $image.tag | default .tag }}
{{- end -}}
{{- end }}

{{/* Image of every process on the hub. */}}
{{- define "dsf.hubImage" -}}
{{ include "dsf.image" (dict "root" . "image" (.Values.hubSetting.resourceController).image "name" "ghcr.io/open-cluster-management-io/dynamic-scoring-framework" "tag" .Chart.AppVersion) }}
{{- end }}

{{- define "dsf.agentImage" -}}
{{ include "dsf.image" (dict "root" . "image" .Values.spokeSetting.agent.image "name" "ghcr.io/open-cluster-management-io/dynamic-scoring-agent" "tag" .Chart.AppVersion) }}
{{- end }}

{{- define "dsf.redis.image" -}}
{{ include "dsf.image" (dict "root" . "image" .Values.redis.image "name" "docker.io/valkey/valkey" "tag" "9.1.2-trixie") }}
{{- end }}

{{/* Names of pull Secrets, of which each is a name or `{name}`, as a JSON list. (list of lists) */}}
{{- define "dsf.pullSecrets" -}}
{{- $names := list -}}
{{- range . -}}{{- range . -}}{{- $names = append $names (ternary . (get (kindIs "map" . | ternary . dict) "name") (kindIs "string" .)) -}}{{- end -}}{{- end -}}
{{- uniq $names | toJson -}}
{{- end }}

{{/* "true" or "": whether user ids are left to OpenShift. */}}
{{- define "dsf.openshift" -}}
{{- $given := toString .Values.openshift.enabled -}}
{{- if or (eq $given "true") (and (eq $given "auto") (.Capabilities.APIVersions.Has "route.openshift.io/v1")) -}}true{{- end -}}
{{- end }}

{{- define "dsf.podSecurityContext" -}}
runAsNonRoot: true
{{- if not (include "dsf.openshift" .) }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "dsf.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where pods on the hub run. (dict "root" $ "component" "beat" "values" those of the component, if it has some) */}}
{{- define "dsf.placement" -}}
{{- $values := .values | default dict -}}
{{- $all := .root.Values -}}
{{- with include "dsf.pullSecrets" (list ($all.global).imagePullSecrets $all.imagePullSecrets) | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector | default $all.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* Let Redis without a volume, and the controller that moves it, leave a lost node at once instead of after five minutes. */}}
{{- $tolerations := $values.tolerations | default $all.tolerations | default list }}
{{- if and (include "dsf.redis.isMovable" .root) (has .component (list "redis" (include "dsf.processOf" (dict "root" .root "service" "controller")))) }}
{{- $tolerations = concat $tolerations (list
  (dict "key" "node.kubernetes.io/unreachable" "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 0)
  (dict "key" "node.kubernetes.io/not-ready" "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30)) }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $all.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
affinity:
  {{- with $values.affinity | default $all.affinity }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "dsf.selector" . | nindent 14 }}
  {{- end }}
{{- with $values.topologySpreadConstraints | default $all.topologySpreadConstraints }}
{{- $selector := dict "matchLabels" (include "dsf.selector" $ | fromYaml) }}
topologySpreadConstraints:
  {{- range . }}
  - {{ ternary . (set (deepCopy .) "labelSelector" $selector) (hasKey . "labelSelector") | toJson }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Labels and annotations of pods that people chose, which never win over the chart's. (as dsf.placement) */}}
{{- define "dsf.podLabels" -}}
{{- with omit (merge (dict) (.values.podLabels | default dict) (.root.Values.podLabels | default dict)) "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "dsf.podAnnotations" -}}
{{- with merge (dict) (.values.podAnnotations | default dict) (.root.Values.podAnnotations | default dict) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Name of the Secret with the master secret of the signatures. */}}
{{- define "dsf.signingSecret" -}}
{{ .Values.signing.existingSecret | default "dynamic-scoring-hub-signing" }}
{{- end }}

{{- define "dsf.flowerSecret" -}}
{{ .Values.flower.existingSecret | default "dynamic-scoring-flower" }}
{{- end }}

{{/*
The values, one a line, for want of which something is made at random or looked up in the cluster. Where the chart cannot
look (Argo CD, helm template), each rendering would be another one; docs/gitops.md.
*/}}
{{- define "dsf.unsettled" -}}
{{- if not .Values.signing.existingSecret }}
signing.existingSecret
{{- end }}
{{- if and .Values.flower.enabled (not .Values.flower.existingSecret) }}
flower.existingSecret
{{- end }}
{{- if include "dsf.redis.bundled" . }}
{{- if not .Values.redis.usersSecret }}
redis.usersSecret
{{- end }}
{{- if and .Values.redis.tls.enabled (eq .Values.redis.tls.source "generated") }}
redis.tls.source
{{- end }}
{{- if and (eq (include "dsf.redis.exposure" .) "LoadBalancer") (not .Values.redis.exposure.host) }}
redis.exposure.host
{{- end }}
{{- end }}
{{- if and .Values.addon.enabled (not .Values.redis.tls.ca) (include "dsf.redis.caSecret" .) (not (and (include "dsf.redis.bundled" .) (eq .Values.redis.tls.source "generated"))) }}
redis.tls.ca
{{- end }}
{{- end }}

{{/*
A value of a Secret of this chart: what it is now, else the given one. (dict "root" $ "secret" name "key" key "new" text)
Base64, ready for `data`.
*/}}
{{- define "dsf.keptOr" -}}
{{- $found := lookup "v1" "Secret" (include "dsf.namespace" .root) .secret -}}
{{- $kept := get ((($found).data) | default dict) .key -}}
{{- $kept | default (b64enc .new) -}}
{{- end }}

{{- /* URL of the row of docs/troubleshooting.md for an alert: (list root anchor). */}}
{{- define "dsf.runbook" }}
{{- $root := index . 0 }}
{{- printf "%s/blob/v%s/docs/troubleshooting.md#%s" (first $root.Chart.Sources) $root.Chart.AppVersion (index . 1) }}
{{- end }}
