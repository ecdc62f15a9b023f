{{- /* A StatefulSet: (dict "root" $ "name" … "component" "nodes" | "brokers" "roles" … "of" .Values.nodes "firstId" 0). */ -}}
{{- define "firn.set" -}}
{{- $root := .root -}}{{- $v := $root.Values -}}
{{- $tls := eq $v.security.mode "tls" -}}
{{- $isBroker := contains "broker" .roles -}}{{- $isController := contains "controller" .roles -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  labels:
    {{- include "firn.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  serviceName: {{ include "firn.fullname" $root }}-nodes
  replicas: {{ .of.replicas }}
  {{- if .firstId }}
  ordinals:
    start: {{ .firstId }}
  {{- end }}
  # All at once: no node serves before a majority of the controllers is there, so the first would wait for the second for ever.
  podManagementPolicy: Parallel
  minReadySeconds: {{ $v.minReadySeconds }}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {partition: {{ $v.updatePartition }}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  selector:
    matchLabels:
      {{- include "firn.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels:
        {{- with $v.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
        {{- include "firn.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
        firn/node: "true"
        firn/broker: {{ $isBroker | quote }}
      annotations:
        {{- with $v.podAnnotations }}{{ toYaml . | nindent 8 }}{{ end }}
        checksum/config: {{ include "firn.properties" (dict "root" $root "roles" .roles) | sha256sum }}
    spec:
      {{- with $v.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      serviceAccountName: {{ include "firn.serviceAccount" $root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      # SIGTERM has a broker's leaderships moved away before it ends, so there is no preStop hook: the node would go on leading
      # while one sleeps. Clients hold connections to pods by name, not to the bootstrap service.
      terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
      {{- with $v.scheduling.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $v.scheduling.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.scheduling.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        podAntiAffinity:
          {{- if eq $v.scheduling.antiAffinity "required" }}
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  {{- include "firn.selector" $root | nindent 18 }}
                  app.kubernetes.io/component: {{ .component }}
          {{- else }}
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "firn.selector" $root | nindent 20 }}
                    app.kubernetes.io/component: {{ .component }}
          {{- end }}
      {{- if $v.scheduling.spreadOverZones }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "firn.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ .component }}
      {{- end }}
      securityContext: {{- toYaml $v.podSecurityContext | nindent 8 }}
      containers:
        - name: firn
          image: {{ include "firn.image" $root }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: [server, --log-level, {{ $v.logLevel }}]
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_INDEX
              valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
            {{- if and $v.rack.podLabel $isBroker }}
            - name: POD_RACK
              valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ $v.rack.podLabel }}']"}}
            {{- end }}
            {{- if ne $v.cluster.form "none" }}
            - name: FIRN_IMAGE_FORM
              value: {{ $v.cluster.form }}
            {{- end }}
            {{- if $isController }}
            - name: FIRN_IMAGE_VOTERS
              value: {{ include "firn.voters" $root }}
            {{- end }}
            {{- with $v.cluster.replace }}
            - name: FIRN_IMAGE_REPLACE
              value: {{ join "," . | quote }}
            {{- end }}
            {{- if $tls }}
            - name: FIRN_IMAGE_HTTP
              value: https://127.0.0.1:9464
            {{- if $isController }}
            - name: FIRN_IMAGE_ADD_SCRAM
              value: SCRAM-SHA-512=[name={{ $v.security.admin.name }},password=@/etc/firn/admin/{{ $v.security.admin.passwordKey }}]
            {{- end }}
            {{- end }}
            {{- if $v.metrics.tokenSecretName }}
            - name: FIRN_HTTP_TOKEN_FILE
              value: /etc/firn/metrics/token
            {{- end }}
            {{- with $v.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with $v.remote.secretName }}
          envFrom:
            - secretRef: {name: {{ . }}}
          {{- end }}
          ports:
            {{- if $isBroker }}
            - {name: clients, containerPort: 9092}
            {{- if $tls }}
            - {name: internal, containerPort: 9192}
            {{- end }}
            {{- end }}
            {{- if $isController }}
            - {name: controller, containerPort: 9093}
            {{- end }}
            - {name: http, containerPort: 9464}
          startupProbe:
            httpGet: {path: /healthz, port: http, scheme: {{ include "firn.httpScheme" $root }}}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: 60
          # Whether it lives. Never /readyz here: without a majority of the controllers nobody becomes ready, and a restart of
          # all of them would not bring the majority back.
          livenessProbe:
            httpGet: {path: /healthz, port: http, scheme: {{ include "firn.httpScheme" $root }}}
            periodSeconds: 10
            timeoutSeconds: 10
            failureThreshold: 12
          # Whether it serves: it is passed over by the bootstrap service, and the next one is not restarted, while it does not.
          readinessProbe:
            {{- if $v.metrics.tokenSecretName }}
            exec: {command: [firn-health, readyz]}
            {{- else }}
            httpGet: {path: /readyz, port: http, scheme: {{ include "firn.httpScheme" $root }}}
            {{- end }}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 3
          resources: {{- toYaml .of.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: data, mountPath: /var/lib/firn}
            - {name: config, mountPath: /etc/firn/server.properties, subPath: server.properties, readOnly: true}
            - {name: tmp, mountPath: /tmp}
            {{- if $v.remote.cache.enabled }}
            - {name: cache, mountPath: /var/cache/firn}
            {{- end }}
            {{- if $tls }}
            - {name: tls, mountPath: /etc/firn/tls, readOnly: true}
            {{- if $isController }}
            - {name: admin, mountPath: /etc/firn/admin, readOnly: true}
            {{- end }}
            {{- end }}
            {{- if $v.metrics.tokenSecretName }}
            - {name: metrics, mountPath: /etc/firn/metrics, readOnly: true}
            {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ include "firn.fullname" $root }}-{{ .component }}}
        - name: tmp
          emptyDir: {}
        {{- if $v.remote.cache.enabled }}
        - name: cache
          emptyDir: {sizeLimit: {{ $v.remote.cache.size }}}
        {{- end }}
        {{- if $tls }}
        - name: tls
          secret: {secretName: {{ $v.security.tls.secretName }}, defaultMode: 0440}
        {{- if $isController }}
        - name: admin
          secret: {secretName: {{ $v.security.admin.secretName }}, defaultMode: 0440}
        {{- end }}
        {{- end }}
        {{- with $v.metrics.tokenSecretName }}
        - name: metrics
          secret: {secretName: {{ . }}, defaultMode: 0440}
        {{- end }}
  volumeClaimTemplates:
    - metadata:
        name: data
        {{- with .of.storage.annotations }}
        annotations: {{- toYaml . | nindent 10 }}
        {{- end }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .of.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests: {storage: {{ .of.storage.size }}}
{{- end -}}
