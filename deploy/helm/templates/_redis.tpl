{{/* "true" or "": whether the chart runs its own Redis. */}}
{{- define "dsf.redis.bundled" -}}
{{- if eq .Values.redis.mode "bundled" }}true{{ end -}}
{{- end }}

{{/* "true" or "": whether any node may run the bundled Redis, which has no volume then. */}}
{{- define "dsf.redis.isMovable" -}}
{{- if and (include "dsf.redis.bundled" .) (not .Values.redis.persistence.enabled) }}true{{ end -}}
{{- end }}

{{- define "dsf.redis.host" -}}
dynamic-scoring-redis.{{ include "dsf.namespace" . }}.svc
{{- end }}

{{/* URL for processes on the hub. */}}
{{- define "dsf.redis.url" -}}
{{- if include "dsf.redis.bundled" . -}}
{{ ternary "rediss" "redis" .Values.redis.tls.enabled }}://{{ include "dsf.redis.host" . }}:6379/0
{{- else -}}
{{ required "redis.external.url: required with redis.mode external" .Values.redis.external.url }}
{{- end -}}
{{- end }}

{{/* How agents reach the bundled Redis; empty with an external one. */}}
{{- define "dsf.redis.exposure" -}}
{{- $type := .Values.redis.exposure.type -}}
{{- if include "dsf.redis.bundled" . -}}
{{ $type | default "HubAPI" }}
{{- else if eq $type "HubAPI" -}}
{{- fail "redis.exposure.type: HubAPI forwards connections to the pod of the bundled Redis, and redis.mode is external: leave it empty, agents connect to redis.external.url or redis.agentUrl" -}}
{{- end -}}
{{- end }}

{{/* "true" or "": whether agents reach Redis through the hub's API server. */}}
{{- define "dsf.redis.viaHubApi" -}}
{{- if and (eq (include "dsf.redis.exposure" .) "HubAPI") (not .Values.redis.agentUrl) }}true{{ end -}}
{{- end }}

{{/* Host that agents use for the bundled Redis; empty when it is not known (yet). */}}
{{- define "dsf.redis.exposedHost" -}}
{{- $exposure := .Values.redis.exposure -}}
{{- $type := include "dsf.redis.exposure" . -}}
{{- if and $exposure.host (eq $type "HubAPI") -}}
{{- fail "redis.exposure.host: not used with redis.exposure.type HubAPI: agents reach Redis through the hub's API server. Remove it, or set the type that exposes this host, such as LoadBalancer or NodePort" -}}
{{- else if regexMatch "^[^:]*:[0-9]*$" (default "" $exposure.host) -}}
{{- fail (printf "redis.exposure.host: %s has a port: give the host alone; the port is that of redis.exposure.type, and redis.agentUrl sets another one" $exposure.host) -}}
{{- else if $exposure.host -}}
{{ $exposure.host }}
{{- else if has $type (list "ClusterIP" "HubAPI") -}}
{{ include "dsf.redis.host" . }}
{{- else if hasPrefix "Skupper" $type -}}
dynamic-scoring-redis
{{- else if eq $type "LoadBalancer" -}}
{{- $service := lookup "v1" "Service" (include "dsf.namespace" .) "dynamic-scoring-redis-external" -}}
{{- $ingress := (((($service).status).loadBalancer).ingress) | default list -}}
{{- with first $ingress -}}{{ .hostname | default .ip }}{{- end -}}
{{- end -}}
{{- end }}

{{/* URL for agents, without user and password. */}}
{{- define "dsf.redis.agentUrl" -}}
{{- if .Values.redis.agentUrl -}}
{{ .Values.redis.agentUrl }}
{{- else if not (include "dsf.redis.bundled" .) -}}
{{ include "dsf.redis.url" . }}
{{- else -}}
{{- $exposure := .Values.redis.exposure -}}
{{- $type := include "dsf.redis.exposure" . -}}
{{- $host := include "dsf.redis.exposedHost" . -}}
{{- $chosenByName := has $type (list "TLSRoute" "Ingress" "Route") -}}
{{- if and (or $chosenByName (eq $type "NodePort")) (not $host) -}}
{{- fail (printf "redis.exposure.host: required with redis.exposure.type %s, it is what agents connect to" $type) -}}
{{- end -}}
{{- if and $chosenByName (not .Values.redis.tls.enabled) -}}
{{- fail (printf "redis.tls.enabled: required with redis.exposure.type %s, which finds Redis by the host name in the TLS handshake" $type) -}}
{{- end -}}
{{- $port := 6379 -}}
{{- if eq $type "NodePort" -}}
{{- if not $exposure.nodePort -}}
{{- fail "redis.agentUrl: required when redis.exposure.nodePort is null" -}}
{{- end -}}
{{- $port = $exposure.nodePort -}}
{{- else if $chosenByName -}}
{{- $port = 443 -}}
{{- end -}}
{{- $name := $host | default (include "dsf.redis.host" .) -}}
{{ ternary "rediss" "redis" .Values.redis.tls.enabled }}://{{ contains ":" $name | ternary (printf "[%s]" $name) $name }}:{{ $port }}/0
{{- end -}}
{{- end }}

{{/* Names in the certificate of the bundled Redis, as a JSON list. */}}
{{- define "dsf.redis.names" -}}
{{- $namespace := include "dsf.namespace" . -}}
{{- $agents := include "dsf.agentNamespace" . -}}
{{- $names := list "dynamic-scoring-redis" (printf "dynamic-scoring-redis.%s" $namespace) (printf "dynamic-scoring-redis.%s.svc" $namespace) (printf "dynamic-scoring-redis.%s.svc.cluster.local" $namespace) (printf "dynamic-scoring-redis.%s" $agents) (printf "dynamic-scoring-redis.%s.svc" $agents) "localhost" "127.0.0.1" -}}
{{- with include "dsf.redis.exposedHost" . -}}{{- $names = append $names . -}}{{- end -}}
{{- concat $names (.Values.redis.tls.extraHosts | default list) | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* Secret with the certificate of the bundled Redis. */}}
{{- define "dsf.redis.tlsSecret" -}}
{{- if eq .Values.redis.tls.source "existingSecret" -}}
{{ required "redis.tls.existingSecret: required with redis.tls.source existingSecret" .Values.redis.tls.existingSecret }}
{{- else -}}
dynamic-scoring-redis-tls
{{- end -}}
{{- end }}

{{/* Secret whose ca.crt processes on the hub trust; empty: the system's CAs. */}}
{{- define "dsf.redis.caSecret" -}}
{{- if include "dsf.redis.bundled" . -}}
{{- if .Values.redis.tls.enabled }}{{ include "dsf.redis.tlsSecret" . }}{{ end -}}
{{- else -}}
{{ .Values.redis.external.caSecret }}
{{- end -}}
{{- end }}

{{/*
CA and certificate that are made here, once per rendering. Kept are those in the cluster. The certificate is a new one
when names are added, or when half of the CA's ten years is over: the CA is then made again for ten years with the same
name and key. Who still has the CA as it was trusts the new certificate, and who has the new one the old certificate:
it does not matter who is renewed first.
*/}}
{{- define "dsf.redis.makeTls" -}}
{{- if not (hasKey .Values "generatedTls") -}}
{{- $namespace := include "dsf.namespace" . -}}
{{- $names := include "dsf.redis.names" . -}}
{{- $days := 3650 -}}
{{- $now := now | unixEpoch | int64 -}}
{{- $until := add $now (mul 86400 (div $days 2)) -}}
{{- $prefix := "dynamic-scoring.open-cluster-management.io" -}}
{{- $keptCa := lookup "v1" "Secret" $namespace "dynamic-scoring-redis-ca" -}}
{{- $kept := lookup "v1" "Secret" $namespace "dynamic-scoring-redis-tls" -}}
{{- $keptUntil := get ((($keptCa).metadata).annotations | default dict) (print $prefix "/renew-after") | default "0" | int64 -}}
{{- $keptNames := get ((($kept).metadata).annotations | default dict) (print $prefix "/names") -}}
{{- $ca := dict -}}
{{- $caIsKept := and ($keptCa).data (gt $keptUntil $now) -}}
{{- if $caIsKept -}}
{{- $until = $keptUntil -}}
{{- $ca = buildCustomCert (get $keptCa.data "tls.crt") (get $keptCa.data "tls.key") -}}
{{- else if ($keptCa).data -}}
{{- $ca = genCAWithKey "dynamic-scoring-redis-ca" $days (get $keptCa.data "tls.key" | b64dec) -}}
{{- else -}}
{{- $ca = genCAWithKey "dynamic-scoring-redis-ca" $days (genPrivateKey "ecdsa") -}}
{{- end -}}
{{- $made := dict "caCert" (b64enc $ca.Cert) "caKey" (b64enc $ca.Key) "names" $names "renewAfter" (toString $until) -}}
{{- if and $caIsKept ($kept).data (eq $keptNames $names) -}}
{{- $_ := merge $made (dict "cert" (get $kept.data "tls.crt") "key" (get $kept.data "tls.key")) -}}
{{- else -}}
{{- $dns := list -}}
{{- $ips := list -}}
{{- range fromJsonArray $names -}}
{{- if or (regexMatch "^[0-9.]+$" .) (contains ":" .) -}}{{- $ips = append $ips . -}}{{- else -}}{{- $dns = append $dns . -}}{{- end -}}
{{- end -}}
{{- $cert := genSignedCertWithKey "dynamic-scoring-redis" $ips $dns $days $ca (genPrivateKey "ecdsa") -}}
{{- $_ := merge $made (dict "cert" (b64enc $cert.Cert) "key" (b64enc $cert.Key)) -}}
{{- end -}}
{{- $_ := set .Values "generatedTls" $made -}}
{{- end -}}
{{- end }}

{{/* CA (PEM) of a certificate that is made here, and those that are to be trusted besides. */}}
{{- define "dsf.redis.generatedCa" -}}
{{- include "dsf.redis.makeTls" . -}}
{{ .Values.generatedTls.caCert | b64dec | trim }}
{{- with .Values.redis.tls.ca }}
{{ trim . }}
{{- end }}
{{ end }}

{{/* CA (PEM) that agents trust; empty: the system's. */}}
{{- define "dsf.redis.agentCa" -}}
{{- if and (include "dsf.redis.bundled" .) .Values.redis.tls.enabled (eq .Values.redis.tls.source "generated") -}}
{{ include "dsf.redis.generatedCa" . }}
{{- else if .Values.redis.tls.ca -}}
{{ .Values.redis.tls.ca }}
{{- else if include "dsf.redis.caSecret" . -}}
{{- $secret := lookup "v1" "Secret" (include "dsf.namespace" .) (include "dsf.redis.caSecret" .) -}}
{{- get (($secret).data | default dict) "ca.crt" | b64dec -}}
{{- end -}}
{{- end }}

{{/*
Name of the Secret with a CA that agents need and do not get, because it was not found: it is not there yet, or there is
no cluster to look it up in. Empty when all is well.
*/}}
{{- define "dsf.redis.agentCaMissing" -}}
{{- if and .Values.addon.enabled (not (include "dsf.redis.agentCa" . | trim)) -}}
{{- include "dsf.redis.caSecret" . -}}
{{- end -}}
{{- end }}

{{/* Secret with the passwords of the users of processes on the hub. */}}
{{- define "dsf.redis.usersSecret" -}}
{{- if .Values.redis.usersSecret -}}
{{ .Values.redis.usersSecret }}
{{- else if include "dsf.redis.bundled" . -}}
dynamic-scoring-redis-users
{{- else -}}
{{- fail "redis.usersSecret: required with redis.mode external" -}}
{{- end -}}
{{- end }}

{{/* Passwords of the bundled Redis' users as base64, by user; made once per rendering. */}}
{{- define "dsf.redis.makePasswords" -}}
{{- if not (hasKey .Values "generatedPasswords") -}}
{{- $root := . -}}
{{- $passwords := dict -}}
{{- /* Make the users of both modes, so that a change of the mode does not restart Redis. */ -}}
{{- range concat (list "hub" "controller" "beat" "results" "web" (ternary "flower" "flower-tasks" .Values.flower.readOnly) "operator" "sentinel" "replica") (ternary (list "optimizer") list .Values.optimizer.enabled) -}}
{{- $_ := set $passwords . (include "dsf.keptOr" (dict "root" $root "secret" "dynamic-scoring-redis-users" "key" . "new" (randAlphaNum 40))) -}}
{{- end -}}
{{- $_ := set .Values "generatedPasswords" $passwords -}}
{{- end -}}
{{- end }}

{{/* Environment of one process on the hub, for Redis. (dict "root" $ "component" "beat" "redisUser" name, if it is another one) */}}
{{- define "dsf.redis.env" -}}
{{- $external := .root.Values.redis.external -}}
- name: DSF_REDIS_URL
  value: {{ include "dsf.redis.url" .root | quote }}
- name: DSF_REDIS_USERNAME
  value: dsf-{{ .redisUser | default .component }}
- name: DSF_REDIS_PASSWORD_FILE
  value: /etc/dsf/redis/password
{{- if include "dsf.redis.caSecret" .root }}
- name: DSF_REDIS_CA_FILE
  value: /etc/dsf/redis-ca/ca.crt
{{- end }}
{{- if and (not (include "dsf.redis.bundled" .root)) (hasPrefix "sentinel:" $external.url) }}
- name: DSF_REDIS_SENTINEL_MASTER
  value: {{ required "redis.external.sentinel.master: required with a sentinel:// URL" $external.sentinel.master | quote }}
- name: DSF_REDIS_SENTINEL_TLS
  value: {{ $external.sentinel.tls | quote }}
{{- with $external.sentinel.username }}
- name: DSF_REDIS_SENTINEL_USERNAME
  value: {{ . | quote }}
{{- end }}
{{- if $external.sentinel.passwordSecret }}
- name: DSF_REDIS_SENTINEL_PASSWORD_FILE
  value: /etc/dsf/redis-sentinel/password
{{- end }}
{{- end }}
{{- end }}

{{/*
"true" or "": whether agents ask Sentinels that want a password, which the hub controller delivers. Who may do everything
with the Sentinels can lead the whole fleet to another server, so agents get the password of a named user only.
*/}}
{{- define "dsf.redis.agentSentinelPassword" -}}
{{- $sentinel := .Values.redis.external.sentinel -}}
{{- if and (not (include "dsf.redis.bundled" .)) $sentinel.passwordSecret (hasPrefix "sentinel:" (include "dsf.redis.agentUrl" .)) -}}
{{- if $sentinel.username -}}
true
{{- else if .Values.addon.enabled -}}
{{- fail "redis.external.sentinel.username: required with redis.external.sentinel.passwordSecret, because agents get this password too: that of a user who may only ask, as in deploy/redis/sentinel.conf.example" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "dsf.redis.mounts" -}}
- name: redis-password
  mountPath: /etc/dsf/redis
  readOnly: true
{{- if include "dsf.redis.caSecret" .root }}
- name: redis-ca
  mountPath: /etc/dsf/redis-ca
  readOnly: true
{{- end }}
{{- if and (not (include "dsf.redis.bundled" .root)) .root.Values.redis.external.sentinel.passwordSecret }}
- name: redis-sentinel
  mountPath: /etc/dsf/redis-sentinel
  readOnly: true
{{- end }}
{{- end }}

{{- define "dsf.redis.volumes" -}}
- name: redis-password
  secret:
    secretName: {{ include "dsf.redis.usersSecret" .root | quote }}
    items:
      - {key: {{ .redisUser | default .component }}, path: password}
{{- with include "dsf.redis.caSecret" .root }}
- name: redis-ca
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- if and (not (include "dsf.redis.bundled" .root)) .root.Values.redis.external.sentinel.passwordSecret }}
- name: redis-sentinel
  secret:
    secretName: {{ .root.Values.redis.external.sentinel.passwordSecret | quote }}
    items:
      - {key: password, path: password}
{{- end }}
{{- end }}

{{/* Configuration of the bundled Redis. */}}
{{- define "dsf.redis.configuration" -}}
bind * -::*
{{- if .Values.redis.tls.enabled }}
port 0
tls-port 6379
tls-cert-file /etc/redis-tls/tls.crt
tls-key-file /etc/redis-tls/tls.key
tls-ca-cert-file /etc/redis-tls/ca.crt
# Clients log in with user and password.
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
{{- else }}
port 6379
{{- end }}
protected-mode no
aclfile /data/users.acl
# Number of refusals in ACL LOG, each with the refused key and the name of the connection.
acllog-max-len 8
# Number of slow commands in SLOWLOG, each with the name of its connection.
slowlog-max-len 8
dir /data
appendonly yes
appendfsync everysec
# With Redis' default of 64 MB, rewrites of a large fleet's file take a fifth of Redis' CPU time.
auto-aof-rewrite-min-size 512mb
save ""
maxmemory-policy noeviction
# Above this limit agents cannot write; the hub's own scripts still can.
maxmemory {{ .Values.redis.maxMemory }}
# A pair's score is a field of its hash. Up to this size Redis keeps the hash as one block, which saves 0.4 kB a pair.
hash-max-listpack-value 2048
# Hashes with more fields stay hash tables: searching them field by field would be slow.
hash-max-listpack-entries 64
maxclients {{ .Values.redis.maxClients | int }}
tcp-backlog 1024
tcp-keepalive 60
timeout 0
# Flower and the results workers subscribe to channels. A burst of events must not disconnect a slow Flower.
client-output-buffer-limit pubsub 32mb 16mb 60
# The largest values are compressed results of 2 MB, which a results worker stores. A stolen credential cannot
# fill the memory with one command, and all slots of its mailbox hold at most 16 of these.
proto-max-bulk-len 16mb
client-query-buffer-limit 32mb
# Limit of all connections together; Redis closes the largest first. 20,000 idle connections take about 60 MB.
maxmemory-clients 512mb
{{- end }}
