{{- define "muster.taintBy" -}}
{{- if ne .Values.taintBy "auto" -}}
{{- .Values.taintBy -}}
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
policy
{{- else -}}
webhook
{{- end -}}
{{- end }}

{{- define "muster.monitoring" -}}
{{- $has := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" -}}
{{- $has = and $has (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule") -}}
{{- if or (eq .Values.monitoring "on") (and (eq .Values.monitoring "auto") $has) -}}
yes
{{- end -}}
{{- end }}

{{- /* The webhook's authority, the same in all templates: given, there already, or made once in this rendering. */}}
{{- define "muster.authority" -}}
{{- if not (hasKey .Values.webhook "made") -}}
{{- $authority := .Values.webhook.authority -}}
{{- if not $authority.certificate -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace "muster-webhook-ca" -}}
{{- if and $found $found.data -}}
{{- $authority = dict "certificate" (get $found.data "ca.crt" | b64dec) "key" (get $found.data "ca.key" | b64dec) -}}
{{- else -}}
{{- $new := genCAWithKey "muster-webhook" 3650 (genPrivateKey "ecdsa") -}}
{{- $authority = dict "certificate" $new.Cert "key" $new.Key -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values.webhook "made" $authority -}}
{{- end -}}
{{- .Values.webhook.made | toJson -}}
{{- end }}

{{- /* What the probe compares the cluster with: the objects themselves. */}}
{{- define "muster.lookedAt" -}}
{{- $objects := list -}}
{{- range splitList "\n---\n" (printf "\n%s\n---\n%s" (include "muster.gate" .) (include "muster.taint" .)) -}}
{{- $one := fromYaml . -}}
{{- if hasKey $one "kind" -}}
{{- $objects = append $objects $one -}}
{{- end -}}
{{- end -}}
{{- dict "mode" (ternary "enforcing" "observing" .Values.enforce) "objects" $objects | toRawJson -}}
{{- end }}

{{- define "muster.texts" -}}
{{- $config := printf "%s\n" (include "muster.config" .) | fromYaml -}}
{{- $texts := list -}}
{{- range $key := keys $config | sortAlpha -}}
{{- $texts = append $texts (get $config $key) -}}
{{- end -}}
{{- join "\n" $texts -}}
{{- end }}

{{- /* Of what a pod reads at its start: other texts are another pod. */}}
{{- define "muster.stamp" -}}
{{- include "muster.texts" . | sha256sum | trunc 16 -}}
{{- end }}

{{- define "muster.webhookStamp" -}}
{{- $certificate := get (include "muster.authority" . | fromJson) "certificate" -}}
{{- join "\n" (list (include "muster.texts" .) (include "muster.attached" .) $certificate) | sha256sum | trunc 16 -}}
{{- end }}
