{{/*
The processes of the hub, each with its services, as JSON: `mode` decides. A process is a Deployment, and its name is that
of its section of the values, its ServiceAccount, its Redis user and its NetworkPolicy.
*/}}
{{- define "dsf.processes" -}}
{{- if eq .Values.mode "Single" -}}
{{- dict "hub" (list "controller" "beat" "results" "web") | toJson -}}
{{- else -}}
{{- dict "controller" (list "controller") "beat" (list "beat") "results" (list "results") "web" (list "web") | toJson -}}
{{- end -}}
{{- end }}

{{/* The process that runs a service. (dict "root" $ "service" "web") */}}
{{- define "dsf.processOf" -}}
{{ eq .root.Values.mode "Single" | ternary "hub" .service }}
{{- end }}

{{/*
The Service of a process: its probes and metrics, and the page where it has it. The page is below one name in both modes.
(dict "process" "web")
*/}}
{{- define "dsf.serviceOf" -}}
dynamic-scoring-{{ eq .process "web" | ternary "hub" .process }}
{{- end }}

{{/* Whether there may be more than one pod of a process: "true" or "". (dict "root" $ "process" "results") */}}
{{- define "dsf.hasReplicas" -}}
{{- $values := index .root.Values .process -}}
{{- if or (gt (int $values.replicas) 1) (and (eq .process "results") (include "dsf.resultsAreScaled" .root)) -}}true{{- end -}}
{{- end }}

{{/* "true" or "": whether an autoscaler sets the replicas of the results workers. */}}
{{- define "dsf.resultsAreScaled" -}}
{{- if or .Values.results.autoscaling.enabled .Values.results.keda.enabled -}}true{{- end -}}
{{- end }}

{{/* What one service of the hub needs, as JSON: env, mounts, volumes, usesApi. (dict "root" $ "service" "web") */}}
{{- define "dsf.needs" -}}
{{- include (printf "dsf.needs.%s" .service) .root -}}
{{- end }}

{{- define "dsf.needs.beat" -}}
{{- dict "env" list "mounts" list "volumes" list | toJson -}}
{{- end }}

{{- define "dsf.needs.results" -}}
{{- dict
  "env" (list (dict "name" "DSF_SIGNING_SECRET_FILE" "value" "/etc/dsf/signing/signing-secret"))
  "mounts" (list (dict "name" "signing" "mountPath" "/etc/dsf/signing" "readOnly" true))
  "volumes" (list (dict "name" "signing" "secret" (dict "secretName" (include "dsf.signingSecret" .) "items" (list (dict "key" "signing-secret" "path" "signing-secret")))))
  | toJson -}}
{{- end }}

{{- define "dsf.needs.controller" -}}
{{- $needs := include "dsf.needs.results" . | fromJson }}
{{- $mounts := $needs.mounts }}
{{- $volumes := $needs.volumes }}
{{- $env := concat $needs.env (list
  (dict "name" "DSF_ADDON_MODE" "value" (toString .Values.addon.enabled))
  (dict "name" "DSF_AGENT_NAMESPACE" "value" (include "dsf.agentNamespace" .))
  (dict "name" "DSF_REDIS_MANAGE_USERS" "value" "true")) }}
{{- if .Values.hubSetting.scoringConfig.create }}
{{- $env = append $env (dict "name" "DSF_SCORING_CONFIG" "value" (dict "masks" (.Values.hubSetting.scoringConfig.masks | default list) | toJson)) }}
{{- end }}
{{- if include "dsf.redis.isMovable" . }}
{{- $env = append $env (dict "name" "DSF_REDIS_MOVABLE_POD" "value" (printf "%s/dynamic-scoring-redis-0" (include "dsf.namespace" .))) }}
{{- end }}
{{- if include "dsf.redis.agentSentinelPassword" . }}
{{- $env = append $env (dict "name" "DSF_AGENT_SENTINEL_PASSWORD_FILE" "value" "/etc/dsf/redis-sentinel/password") }}
{{- end }}
{{- with .Values.spokeSetting.agent.pullSecret }}
{{- $env = append $env (dict "name" "DSF_AGENT_PULL_SECRET_FILE" "value" "/etc/dsf/agent-pull-secret/config.json") }}
{{- $mounts = append $mounts (dict "name" "agent-pull-secret" "mountPath" "/etc/dsf/agent-pull-secret" "readOnly" true) }}
{{- /* Optional: if you remove this Secret, the hub continues to run and removes its copies from the managed clusters. */}}
{{- $volumes = append $volumes (dict "name" "agent-pull-secret" "secret" (dict "secretName" . "optional" true "items" (list (dict "key" ".dockerconfigjson" "path" "config.json")))) }}
{{- end }}
{{- if or .Values.trustedCA.configMap .Values.openshift.serviceCA }}
{{- $sources := list }}
{{- if .Values.trustedCA.configMap }}
{{- $sources = append $sources (dict "configMap" (dict "name" .Values.trustedCA.configMap "items" (list (dict "key" "ca.crt" "path" "private.crt")))) }}
{{- end }}
{{- if .Values.openshift.serviceCA }}
{{- $sources = append $sources (dict "configMap" (dict "name" "dynamic-scoring-service-ca" "items" (list (dict "key" "service-ca.crt" "path" "service-ca.crt")))) }}
{{- end }}
{{- $volumes = append $volumes (dict "name" "trusted-ca" "projected" (dict "sources" $sources)) }}
{{- $mounts = append $mounts (dict "name" "trusted-ca" "mountPath" "/etc/dsf/trusted-ca" "readOnly" true) }}
{{- $env = append $env (dict "name" "DSF_TRUSTED_CA_DIR" "value" "/etc/dsf/trusted-ca") }}
{{- end }}
{{- $mounts = concat $mounts (.Values.hubSetting.extraVolumeMounts | default list) }}
{{- $volumes = concat $volumes (.Values.hubSetting.extraVolumes | default list) }}
{{- dict "env" $env "mounts" $mounts "volumes" $volumes "usesApi" true | toJson -}}
{{- end }}

{{- define "dsf.needs.web" -}}
{{- /* Programs in the cluster use these names of the page's Service. An attack by DNS rebinding cannot use them. */}}
{{- $service := printf "dynamic-scoring-hub.%s" (include "dsf.namespace" .) }}
{{- $hosts := concat (.Values.web.hosts | default list) (list $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service)) }}
{{- with .Values.web.ingress }}{{- if .enabled }}{{- $hosts = append $hosts (required "web.ingress.host: required with an Ingress" .host) | uniq }}{{- end }}{{- end }}
{{- dict
  "env" (list
    (dict "name" "DSF_LISTEN_PORT" "value" "8080")
    (dict "name" "DSF_HOST_NAMES" "value" ($hosts | toJson)))
  "mounts" list "volumes" list "usesApi" true | toJson -}}
{{- end }}

{{/*
Values that this mode does not read, or that earlier versions had: a rendering with one of them ends with a sentence that
names what to set. Values that are the chart's defaults are none; a default that changes in values.yaml changes here, or
nothing renders.
*/}}
{{- define "dsf.refuseValues" -}}
{{- $root := . -}}
{{- if hasKey .Values "exporter" -}}
{{- if not (empty .Values.exporter) -}}
{{- fail (printf "exporter: it is part of the service web, and there is no process of its own. Remove the section; exporter.%s is web.%s" (keys .Values.exporter | sortAlpha | first) (keys .Values.exporter | sortAlpha | first)) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.results "writeRate" -}}
{{- if not (kindIs "invalid" .Values.results.writeRate) -}}
{{- fail "results.writeRate: the controller writes the scores: set controller.writeRate" -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey .Values.web "enabled") (not (kindIs "invalid" .Values.web.enabled)) (ne (toString .Values.web.enabled) "true") -}}
{{- fail "web.enabled: the page, the JSON API and the metrics of the fleet are one service, which always runs. Remove it; web.auth and networkPolicy.webFrom say who may open the page" -}}
{{- end -}}
{{- $options := dict "extraEnv" list "nodeSelector" dict "tolerations" list "affinity" dict "topologySpreadConstraints" list "podLabels" dict "podAnnotations" dict "serviceAccount" (dict "annotations" dict) "extraVolumes" list "extraVolumeMounts" list -}}
{{- $resources := dict "limits" (dict "memory" "512Mi") "requests" (dict "cpu" "50m" "memory" "96Mi") -}}
{{- $processes := dict
  "hub" (dict "replicas" 1 "resources" (dict "limits" (dict "memory" "1Gi") "requests" (dict "cpu" "100m" "memory" "148Mi")))
  "controller" (dict "replicas" 2 "resources" (dict "limits" (dict "memory" "1Gi") "requests" (dict "cpu" "50m" "memory" "96Mi")))
  "beat" (dict "replicas" 2 "resources" $resources)
  "results" (dict "replicas" 2 "resources" $resources)
  "web" (dict "replicas" 1 "resources" (dict "limits" (dict "memory" "512Mi") "requests" (dict "cpu" "50m" "memory" "136Mi"))) -}}
{{- $active := include "dsf.processes" . | fromJson -}}
{{- range $process, $defaults := $processes -}}
{{- if not (hasKey $active $process) -}}
{{- range $key, $default := merge (dict) $defaults $options -}}
{{- $value := index $root.Values $process $key -}}
{{- if and (not (empty $value)) (ne (toJson $value) (toJson $default)) -}}
{{- if eq $root.Values.mode "Single" -}}
{{- fail (printf "%s.%s: with mode Single, the process dynamic-scoring-hub runs this service: set hub.%s, or mode: Distributed" $process $key $key) -}}
{{- else -}}
{{- fail (printf "hub.%s: with mode Distributed, there is no process of all services: set %s of controller, beat, results or web, or mode: Single" $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "Single") (include "dsf.resultsAreScaled" .) -}}
{{- fail "results.autoscaling and results.keda: with mode Single, there are no results workers to scale: set mode: Distributed" -}}
{{- end -}}
{{- if and .Values.results.autoscaling.enabled .Values.results.keda.enabled -}}
{{- fail "results.autoscaling and results.keda: KEDA makes a HorizontalPodAutoscaler of its own, enable one of them" -}}
{{- end -}}
{{- if and .Values.web.ingress.enabled (not .Values.web.trustedProxies) -}}
{{- fail "web.trustedProxies: required with web.ingress.enabled: addresses or networks of the ingress controller. Without it, the page takes all its users for one client, and cookies for those of plain HTTP" -}}
{{- end -}}
{{- end }}
