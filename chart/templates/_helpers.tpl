{{/* Prefix of all names: at most 40 characters, so that no suffix of ours passes 63. A release's name may hold dots,
that of a Service mustn't. */}}
{{- define "kri.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $full | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "kri.testNamespace" -}}
{{- .Values.tests.namespace | default (printf "%s-test" (include "kri.fullname" .)) -}}
{{- end }}

{{/* Labels that a selector uses: never change within a release. Call with (list $ "webhook"). */}}
{{- define "kri.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* metadata of an object. Call with (list $ "webhook" NAME) and, for one outside the release's namespace, a fourth
     argument: another namespace, or "" for an object of the whole cluster. A fifth one adds annotations, a sixth labels. */}}
{{- define "kri.metadata" -}}
{{- $root := index . 0 -}}
{{- $namespace := $root.Release.Namespace -}}
{{- if gt (len .) 3 }}{{ $namespace = index . 3 }}{{ end -}}
{{- $annotations := dict -}}
{{- if gt (len .) 4 }}{{ $annotations = index . 4 }}{{ end -}}
{{- $annotations = merge (dict) $annotations $root.Values.commonAnnotations -}}
{{- $labels := $root.Values.commonLabels -}}
{{- if gt (len .) 5 }}{{ $labels = merge (dict) (index . 5) $labels }}{{ end -}}
name: {{ index . 2 }}
{{- with $namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "kri.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
  {{- with $labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* metadata of a pod template. Call with (list $ "webhook" .Values.webhook). */}}
{{- define "kri.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
labels:
  {{- include "kri.selectorLabels" . | nindent 2 }}
  {{- with merge (dict) $values.podLabels $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Image reference. Call with (list $ .Values.webhook.image). */}}
{{- define "kri.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := $image.repository -}}
{{- with $image.registry | default $root.Values.global.imageRegistry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Where and how a component's pods run. Call with .Values.<component>. */}}
{{- define "kri.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Call with (list $ .Values.webhook.image). */}}
{{- define "kri.pullSecrets" -}}
{{- $root := index . 0 -}}
{{- with concat $root.Values.global.imagePullSecrets (index . 1).pullSecrets | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What differs between kinds of nodes: the preset's line, overlaid with what the user gave. As YAML. */}}
{{- define "kri.node" -}}
{{- $preset := index (.Files.Get "files/presets.yaml" | fromYaml) .Values.preset -}}
library: {{ .Values.paths.library | default $preset.library }}
kubelet: {{ .Values.paths.kubelet | default $preset.kubelet }}
driver: {{ ternary $preset.driver .Values.paths.driver (kindIs "invalid" .Values.paths.driver) | quote }}
runtimeClassName: {{ ternary $preset.runtimeClassName .Values.monitor.runtimeClassName (kindIs "invalid" .Values.monitor.runtimeClassName) | quote }}
privileged: {{ ternary $preset.privileged .Values.monitor.privileged (kindIs "invalid" .Values.monitor.privileged) }}
scc: {{ $preset.scc }}
libsyncSeLinux: {{ .Values.librarySync.seLinuxOptions | default $preset.seLinuxOptions | toJson }}
monitorSeLinux: {{ .Values.monitor.seLinuxOptions | default $preset.seLinuxOptions | toJson }}
{{- end }}

{{/* Namespaces that never reach the webhook: ours, so that it can't wait for itself, and the system's. */}}
{{- define "kri.excludedNamespaces" -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace) .Values.webhook.excludedNamespaces | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* namespaceSelector of the webhook and of the policy that checks its work: the same pods. */}}
{{- define "kri.namespaceSelector" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ include "kri.excludedNamespaces" . }}
  {{- if eq .Values.webhook.optOut.allowed "everyone" }}
  - key: kai-resource-isolator.io/webhook
    operator: NotIn
    values: [ignore]
  {{- end }}
{{- end }}

{{/* CEL: the pod asks for a share, by one of the two annotations that KAI reads. Call with "object" or "oldObject". */}}
{{- define "kri.celShare" -}}
has({{ . }}.metadata.annotations) && ('gpu-memory' in {{ . }}.metadata.annotations || 'gpu-fraction' in {{ . }}.metadata.annotations)
{{- end }}

{{/* CEL: the one who asks belongs to an exempt group. */}}
{{- define "kri.celExempt" -}}
request.userInfo.groups.exists(group, group in {{ .Values.policies.exemptGroups | toJson | replace "\"" "'" }})
{{- end }}

{{/* Seconds: a number, alone or with s, m or h. */}}
{{- define "kri.seconds" -}}
{{- $unit := regexFind "[mh]$" (toString .) -}}
{{- mul (regexFind "^[0-9]+" (toString .) | int) (get (dict "" 1 "m" 60 "h" 3600) $unit) -}}
{{- end }}

{{/* The version that may be asked for: the cluster's API, or what --api-versions says. */}}
{{- define "kri.hasPrometheusOperator" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" }}yes{{ end -}}
{{- end }}

{{/* One of the two Jobs of `helm test`. Call with (list $ "share") or (list $ "neighbour"). */}}
{{- define "kri.testJob" -}}
{{- $root := index . 0 -}}
{{- $tests := $root.Values.tests -}}
{{- $name := printf "%s-%s" (include "kri.fullname" $root) (index . 1) -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ include "kri.testNamespace" $root }}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: {{ $tests.timeoutSeconds }}
  ttlSecondsAfterFinished: 3600
  template:
    metadata:
      annotations:
        gpu-memory: {{ $tests.gpuMemory | int | quote }}
      {{- with $tests.podLabels }}
      labels:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      schedulerName: {{ $tests.schedulerName }}
      restartPolicy: Never
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with $tests.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      {{- include "kri.pullSecrets" (list $root $root.Values.librarySync.image) | nindent 6 }}
      terminationGracePeriodSeconds: 1
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: main
          image: {{ include "kri.image" (list $root $root.Values.librarySync.image) }}
          imagePullPolicy: {{ $root.Values.librarySync.image.pullPolicy }}
          command: [/bin/sh, -ec]
          args:
            {{- if eq (index . 1) "share" }}
            - |
              echo "limit=$CUDA_DEVICE_MEMORY_LIMIT"
              cat /etc/ld.so.preload
              vgpu-probe info --csv
              vgpu-probe verify
            {{- else }}
            - |
              exec vgpu-probe hold {{ div (mul ($tests.gpuMemory | int) 3) 4 }}MiB
            {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          {{- with $tests.env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with $tests.extraVolumeMounts }}
          volumeMounts:
            {{- toYaml . | nindent 12 }}
          {{- end }}
      {{- with $tests.extraVolumes }}
      volumes:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
