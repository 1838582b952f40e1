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

{{- /*
The webhook's authority, the same in all templates: given, there already, or made once in this rendering. One that was
made nine of its ten years ago gives way to another one; after it stands the old certificate, which servers that have
not read the new one still have. `made` is in seconds since 1970, none where it was given.
*/}}
{{- define "muster.authority" -}}
{{- if not (hasKey .Values.webhook "made") -}}
{{- $authority := .Values.webhook.authority -}}
{{- if not $authority.certificate -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace "muster-webhook-ca" -}}
{{- $old := "" -}}
{{- $authority = dict -}}
{{- if and $found $found.data -}}
{{- $created := toDate "2006-01-02T15:04:05Z" $found.metadata.creationTimestamp | unixEpoch -}}
{{- $made := dig "annotations" "muster.dev/authority-made" $created $found.metadata -}}
{{- $old = get $found.data "ca.crt" | b64dec -}}
{{- if lt (sub (now | unixEpoch | int64) ($made | int64) | int64) (mul 3285 86400 | int64) -}}
{{- $authority = dict "certificate" $old "key" (get $found.data "ca.key" | b64dec) "made" ($made | toString) -}}
{{- end -}}
{{- end -}}
{{- if not $authority -}}
{{- $new := genCAWithKey "muster-webhook" 3650 (genPrivateKey "ecdsa") -}}
{{- $before := regexFind "(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n" $old -}}
{{- $authority = dict "certificate" (print $new.Cert $before) "key" $new.Key "made" (now | unixEpoch) -}}
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
{{- $labels := dict -}}
{{- if and .Values.enforce .Values.gpuNodes.label (ne (include "muster.taintBy" .) "policy") -}}
{{- $labels = dict .Values.gpuNodes.label .Values.gpuNodes.value -}}
{{- end -}}
{{- dict "labels" $labels "mode" (ternary "enforcing" "observing" .Values.enforce) "objects" $objects | toRawJson -}}
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
