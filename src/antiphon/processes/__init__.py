"""What the processes of one server share: its socket, a table of their loads, messages, and sums of metrics.

Nothing here knows an application. `antiphon.supervisor` starts the processes; `antiphon.http.process` is one.
"""
