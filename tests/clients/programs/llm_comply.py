"""llm-comply: its report, {"summary": …, "results": [{"id": …, "status": …, "errors": […], "warnings": […]}]}."""

import os
import sys
import warnings

from llm_comply.cli import main

URL, MODEL, FORMAT = sys.argv[1:]

warnings.simplefilter("ignore")  # it uses what jsonschema has retired
main(["-u", URL, "-m", MODEL, "-k", os.environ["OPENAI_API_KEY"], "--format", FORMAT, "--json"])
