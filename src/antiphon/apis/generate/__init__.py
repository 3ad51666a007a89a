"""Token-in, token-out: POST /inference/v1/generate, and the requests to it that the render paths make."""
