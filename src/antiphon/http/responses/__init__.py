"""/v1/responses and /v1/conversations: where their APIs meet the store, the worker and the model."""
