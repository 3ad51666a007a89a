"""Renders a chart, with Helm's own library: run by the Python of an environment of its own, without Antiphon.

The argument is the chart, the input a list of values in JSON. It prints a list in JSON, for each values the rendered
files, or the error, as a text; and beside it the findings of `helm lint`.
"""

import json
import sys

import helm_python


def main() -> None:
    [path] = sys.argv[1:]
    rendered = []
    with helm_python.Chart.load(path) as chart:
        for values in json.load(sys.stdin):
            try:
                chart.validate_schema(values)
                rendered.append(chart.render(values, name="demo", namespace="prod"))
            except helm_python.HelmError as error:
                rendered.append(str(error))
    json.dump({"rendered": rendered, "lint": helm_python.lint(path)}, sys.stdout)


if __name__ == "__main__":
    main()
