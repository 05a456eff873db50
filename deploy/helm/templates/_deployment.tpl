{{/*
A Deployment of one process on the hub. Keys of the argument: root, component, values (of the component), args, env
(list), mounts, volumes (lists), ports (dict name -> port), liveness, readiness (probes), usesApi (whether the process
speaks with the API server), grace (seconds), scaled (whether an autoscaler sets the replicas), redisUser (name of its user in Redis,
if not that of the component), alone (no two at once, not even during an upgrade).
*/}}
{{- define "dsf.deployment" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: dynamic-scoring-{{ .component }}
  namespace: {{ include "dsf.namespace" $root | quote }}
  labels:
    {{- include "dsf.componentLabels" . | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy:
    {{- if .alone }}
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      # Keep the old pod until the new one is ready.
      maxUnavailable: 0
      maxSurge: 1
    {{- end }}
  selector:
    matchLabels:
      {{- include "dsf.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "dsf.componentLabels" . | nindent 8 }}
        {{- with include "dsf.podLabels" . }}
        {{- . | nindent 8 }}
        {{- end }}
      {{- with include "dsf.podAnnotations" . }}
      annotations:
        {{- . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: dynamic-scoring-{{ .component }}
      automountServiceAccountToken: {{ .usesApi | default false }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .grace }}
      securityContext:
        {{- include "dsf.podSecurityContext" $root | nindent 8 }}
      {{- include "dsf.placement" . | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "dsf.hubImage" $root | quote }}
          imagePullPolicy: {{ (($values.hubSetting.resourceController).image).pullPolicy | default "IfNotPresent" }}
          args: {{ toJson .args }}
          env:
            - name: DSF_NAMESPACE
              value: {{ include "dsf.namespace" $root | quote }}
            - name: DSF_LOG_FORMAT
              value: {{ $values.log.format | quote }}
            - name: DSF_LOG_LEVEL
              value: {{ $values.log.level | quote }}
            {{- include "dsf.redis.env" . | nindent 12 }}
            {{- with include (printf "dsf.settings.%s" .component) $root | trim }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with .env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- if .usesApi }}
            {{- $direct := list $values.proxy.noProxy }}
            {{- if or $values.proxy.httpProxy $values.proxy.httpsProxy }}
            {{- /* Pods reach the API server at an address that no proxy can reach; Kubernetes fills in the variable. */}}
            {{- $direct = list "$(KUBERNETES_SERVICE_HOST)" "kubernetes.default.svc" $values.proxy.noProxy }}
            {{- end }}
            {{- range $name, $value := dict "HTTP_PROXY" $values.proxy.httpProxy "HTTPS_PROXY" $values.proxy.httpsProxy "NO_PROXY" (join "," (compact $direct)) }}
            {{- if $value }}
            - name: {{ $name }}
              value: {{ $value | quote }}
            {{- end }}
            {{- end }}
            {{- end }}
            {{- with .values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with .ports }}
          ports:
            {{- range $name, $port := . }}
            - name: {{ $name }}
              containerPort: {{ $port }}
            {{- end }}
          {{- end }}
          startupProbe: {{ include "dsf.startupProbe" .liveness }}
          livenessProbe: {{ toJson .liveness }}
          {{- with .readiness }}
          readinessProbe: {{ toJson . }}
          {{- end }}
          {{- with .values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "dsf.securityContext" $root | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            {{- include "dsf.redis.mounts" . | nindent 12 }}
            {{- with concat (.mounts | default list) (.values.extraVolumeMounts | default list) }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: 64Mi
        {{- include "dsf.redis.volumes" . | nindent 8 }}
        {{- with concat (.volumes | default list) (.values.extraVolumes | default list) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}

{{/* Every process has a ServiceAccount of its own. (dict "root" $ "component" "beat" "values" those of the component) */}}
{{- define "dsf.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: dynamic-scoring-{{ .component }}
  namespace: {{ include "dsf.namespace" .root | quote }}
  labels:
    {{- include "dsf.componentLabels" . | nindent 4 }}
  {{- with (.values.serviceAccount).annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}

{{/*
A start may take five minutes: on a busy node, or throttled to a tenth of a CPU, it takes one. Only then does the probe of
its life, the argument, decide.
*/}}
{{- define "dsf.startupProbe" -}}
{{ merge (dict "periodSeconds" 3 "failureThreshold" 100) . | toJson }}
{{- end }}

{{/* A probe of a file that the process touches as long as it works. (dict "file" path "minutes" n) */}}
{{- define "dsf.fileProbe" -}}
{{ dict "exec" (dict "command" (list "/bin/sh" "-c" (printf "test -n \"$(find %s -mmin -%v)\"" .file .minutes))) "periodSeconds" 15 "timeoutSeconds" 5 "failureThreshold" 3 | toJson }}
{{- end }}
