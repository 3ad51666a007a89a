"""jevcompat, the conformance suite of System One: its verdict, and the requirements that are not met."""

import json
import os
import subprocess
import sys
from pathlib import Path

url, model = sys.argv[1:]
report = Path("report.json")
command = [str(Path(sys.executable).with_name("jevcompat")), "test", "--timeout", "600"]
done = subprocess.run(  # noqa: S603
    [*command, url.removesuffix("/v1"), "--key-env", "OPENAI_API_KEY", "--json", str(report)],
    check=False,
    capture_output=True,
    env={**os.environ, "NO_COLOR": "1"},
    text=True,
)
result = json.loads(report.read_text()) if report.exists() else {}
requirements = result.get("results", [])
unmet = {
    row["id"]: [each["message"] for each in row["findings"]]
    for row in requirements
    if row["status"] == "fail"
}
untested = [row["id"] for row in requirements if row["status"] not in ("pass", "fail")]
print(
    json.dumps(
        {"exit": done.returncode, "unmet": unmet, "untested": untested, "late": result.get("inconclusive")}
    )
)
