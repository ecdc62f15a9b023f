{{- define "firn.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "firn.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "firn.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "firn.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "firn.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "firn.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ default (include "firn.fullname" .) .Values.serviceAccount.name }}{{- else -}}{{ default "default" .Values.serviceAccount.name }}{{- end -}}
{{- end -}}

{{- /* What is behind a pod's name in its address. */ -}}
{{- define "firn.domain" -}}
{{ include "firn.fullname" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- /* The first voters, ID@HOST:PORT. */ -}}
{{- define "firn.voters" -}}
{{- $voters := list -}}
{{- range $id := until (int .Values.cluster.initialNodes) -}}
{{- $voters = append $voters (printf "%d@%s-%d.%s:9093" $id (include "firn.fullname" $) $id (include "firn.domain" $)) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end -}}

{{- /* Where the controllers are: those that are there now. */ -}}
{{- define "firn.controllers" -}}
{{- $found := list -}}
{{- range $id := until (int .Values.nodes.replicas) -}}
{{- $found = append $found (printf "%s-%d.%s:9093" (include "firn.fullname" $) $id (include "firn.domain" $)) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{- /* The pods that a client begins with. */ -}}
{{- define "firn.clientPods" -}}
{{- if contains "broker" .Values.nodes.roles -}}any{{- else -}}brokers{{- end -}}
{{- end -}}

{{- define "firn.httpScheme" -}}
{{- ternary "HTTPS" "HTTP" (eq .Values.security.mode "tls") -}}
{{- end -}}

{{- /* server.properties of a set: (dict "root" $ "roles" "broker"). Keys of `config` count before the chart's own. */ -}}
{{- define "firn.properties" -}}
{{- $root := .root -}}{{- $v := $root.Values -}}
{{- $tls := eq $v.security.mode "tls" -}}
{{- $isBroker := contains "broker" .roles -}}{{- $isController := contains "controller" .roles -}}
{{- $host := printf "${env:POD_NAME}.%s" (include "firn.domain" $root) -}}
{{- $listeners := list -}}{{- $told := list -}}
{{- if $isBroker -}}
{{- $name := ternary "CLIENTS" "PLAINTEXT" $tls -}}
{{- $listeners = append $listeners (printf "%s://:9092" $name) -}}{{- $told = append $told (printf "%s://%s:9092" $name $host) -}}
{{- if $tls -}}{{- $listeners = append $listeners "INTERNAL://:9192" -}}{{- $told = append $told (printf "INTERNAL://%s:9192" $host) -}}{{- end -}}
{{- end -}}
{{- if $isController -}}
{{- $listeners = append $listeners "CONTROLLER://:9093" -}}{{- $told = append $told (printf "CONTROLLER://%s:9093" $host) -}}
{{- end -}}
{{- $own := dict
  "node.id" "${env:POD_INDEX}"
  "process.roles" .roles
  "firn.cluster.id" $v.cluster.id
  "log.dirs" "/var/lib/firn/data"
  "listeners" (join "," $listeners)
  "advertised.listeners" (join "," $told)
  "controller.listener.names" "CONTROLLER"
  "controller.quorum.bootstrap.servers" (include "firn.controllers" $root)
  "firn.http.listener" "0.0.0.0:9464"
  "firn.log.format" $v.logFormat
-}}
{{- $more := dict -}}
{{- if $isController -}}{{- $_ := set $own "controller.quorum.auto.join.enable" "true" -}}{{- end -}}
{{- $brokers := add (ternary (int $v.nodes.replicas) 0 (contains "broker" $v.nodes.roles)) (int $v.brokers.replicas) -}}
{{- if ge $brokers 3 -}}
{{- $more = dict "default.replication.factor" "3" "min.insync.replicas" "2" -}}
{{- end -}}
{{- if and $v.rack.podLabel $isBroker -}}{{- $_ := set $own "broker.rack" "${env:POD_RACK}" -}}{{- end -}}
{{- with $v.remote.url -}}{{- $_ := set $own "firn.remote.url" . -}}{{- end -}}
{{- with $v.remote.region -}}{{- $_ := set $own "firn.remote.s3.region" . -}}{{- end -}}
{{- with $v.remote.endpoint -}}{{- $_ := set $own "firn.remote.s3.endpoint" . -}}{{- end -}}
{{- if $v.remote.cache.enabled -}}{{- $_ := set $own "firn.remote.cache.dir" "/var/cache/firn/chunks" -}}{{- end -}}
{{- if $v.metrics.tokenSecretName -}}{{- $_ := set $own "firn.http.token.file" "/etc/firn/metrics/token" -}}{{- end -}}
{{- if $tls -}}
{{- $keystore := printf "/etc/firn/tls/%s" $v.security.tls.keystoreKey -}}
{{- $protocols := list "CLIENTS:SASL_SSL" "INTERNAL:SSL" "CONTROLLER:SSL" -}}
{{- $own = mergeOverwrite $own (dict
  "listener.security.protocol.map" (join "," $protocols)
  "ssl.keystore.type" "PEM"
  "ssl.keystore.location" $keystore
  "ssl.truststore.type" "PEM"
  "ssl.truststore.location" (printf "/etc/firn/tls/%s" $v.security.tls.caKey)
  "authorizer.class.name" "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
  "super.users" (join ";" $v.security.superUsers)
  "firn.http.ssl.keystore.location" $keystore
  "inter.broker.listener.name" "INTERNAL"
) -}}
{{- if $isBroker -}}
{{- $_ := set $own "listener.name.internal.ssl.client.auth" "required" -}}
{{- $_ := set $own "sasl.enabled.mechanisms" "SCRAM-SHA-512" -}}
{{- $_ := set $own "listener.name.clients.scram-sha-512.sasl.jaas.config" "org.apache.kafka.common.security.scram.ScramLoginModule required;" -}}
{{- end -}}
{{- if $isController -}}{{- $_ := set $own "listener.name.controller.ssl.client.auth" "required" -}}{{- end -}}
{{- end -}}
{{- range $key, $_ := $v.config -}}
{{- if hasKey $own $key -}}{{- fail (printf "config.%s: the chart sets this key; other values of the chart say how" $key) -}}{{- end -}}
{{- end -}}
# Written by the chart; a change restarts the nodes, one after another.
{{- range $key, $text := mergeOverwrite $own $more $v.config }}
{{ $key }}={{ $text | replace "\\" "\\\\" | replace "\n" "\\n" }}
{{- end }}
{{ end -}}
