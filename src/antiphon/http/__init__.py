"""The only package that uses Starlette and uvicorn."""
