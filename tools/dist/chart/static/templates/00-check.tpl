{{- if ne .Release.Namespace "muster-system" }}
{{- fail (printf "--namespace %s: Muster's policies name the accounts of muster-system; install it with --namespace muster-system" .Release.Namespace) }}
{{- end }}
{{- if ne (empty .Values.webhook.authority.certificate) (empty .Values.webhook.authority.key) }}
{{- fail "webhook.authority has one of certificate and key; give both, or neither" }}
{{- end }}
