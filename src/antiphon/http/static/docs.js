// Shows /openapi.json with Swagger UI, which would else have the document checked by a server elsewhere.

SwaggerUIBundle({ url: "openapi.json", dom_id: "#app", docExpansion: "none", deepLinking: true, validatorUrl: null });
