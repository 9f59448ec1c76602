{{- define "shortwire.name" -}}
{{- if contains "shortwire" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-shortwire" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "shortwire.labels" -}}
app.kubernetes.io/name: shortwire
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "shortwire.selector" -}}
app.kubernetes.io/name: shortwire
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shortwire.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "shortwire.secret" -}}
{{- if eq .Values.certificate.from "secret" }}{{ required "certificate.secretName" .Values.certificate.secretName }}{{ else }}{{ include "shortwire.name" . }}-tls{{ end }}
{{- end }}
