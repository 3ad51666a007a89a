"""Schemas as agents, and the libraries that write schemas, send them. All can be enforced whole.

They are our own, in the manner of tools for coding, offices, shops, homes, data and games; of pydantic (`title`,
`$defs`, `anyOf` with null, `default`), of zod (`$schema`, `additionalProperties: false`, `const`), of Go and
Java generators (`nullable`, `definitions`, `allOf`), and of people who write by hand.
"""

from typing import Any

import jsonschema_rs

from antiphon.core.schema_ids import without_ids

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
FLAG: Json = {"type": "boolean"}
NULL: Json = {"type": "null"}


def text(**more: Any) -> Json:
    return {"type": "string", **more}


def whole(low: int | None = None, high: int | None = None) -> Json:
    bounds = {"minimum": low, "maximum": high}
    return {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}


def listed(*values: Any) -> Json:
    return {"type": "string", "enum": list(values)}


def array(items: Any, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def maybe(schema: Json) -> Json:
    """As pydantic writes what may be missing."""
    return {"anyOf": [schema, NULL], "default": None}


def tool(properties: Json, *optional: str, **more: Any) -> Json:
    """Arguments of a function: all are required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, **more}


def closed(properties: Json, *optional: str, **more: Any) -> Json:
    """As strict functions want it, and zod writes it."""
    return tool(properties, *optional, additionalProperties=False, **more)


def model(title: str, properties: Json, *optional: str, **more: Any) -> Json:
    """As pydantic writes a model."""
    named = {
        name: {"title": name.replace("_", " ").title(), **schema} if "$ref" not in schema else schema
        for name, schema in properties.items()
    }
    return tool(named, *optional, title=title, **more)


def ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


def zod(schema: Json) -> Json:
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


PATH = text(description="An absolute path", minLength=1, maxLength=4096)
SLUG = text(pattern="^[a-z0-9-]+$", minLength=1, maxLength=63)
COLOR = text(pattern="^#[0-9a-fA-F]{6}$")
DAY = text(format="date")
TIME = text(format="date-time")
UUID = text(format="uuid")
MONEY = closed({"amount": {"type": "number", "minimum": 0}, "currency": text(pattern="^[A-Z]{3}$")})
POINT = tool({"lat": {"type": "number", "minimum": -90, "maximum": 90},
              "lng": {"type": "number", "minimum": -180, "maximum": 180}})  # fmt: skip

CODING: Json = {
    "read_file": tool({"path": PATH, "offset": whole(0), "limit": whole(1, 2000)}, "offset", "limit"),
    "write_file": tool({"path": PATH, "content": text(maxLength=1_000_000)}),
    "edit_file": tool({"path": PATH, "old_string": TEXT, "new_string": TEXT, "replace_all": {**FLAG, "default": False}},
                      "replace_all", **{"$schema": "http://json-schema.org/draft-07/schema#"}),
    "multi_edit": tool({"path": PATH, "edits": array(closed({"old": TEXT, "new": TEXT}), minItems=1, maxItems=1000)}),
    "bash": tool({"command": text(minLength=1), "timeout": {"type": "number", "maximum": 600_000},
                  "run_in_background": FLAG, "description": text(maxLength=100)}, "timeout", "run_in_background"),
    "grep": closed({"pattern": TEXT, "path": TEXT, "output_mode": listed("content", "files", "count"), "-A": NUMBER,
                    "-B": NUMBER, "-i": FLAG, "head_limit": whole(1)}, "path", "output_mode", "-A", "-B", "-i", "head_limit"),
    "glob": tool({"pattern": text(examples=["**/*.ts"]), "cwd": TEXT}, "cwd"),
    "todo_write": closed({"todos": array(closed({
        "id": TEXT, "content": text(minLength=1), "status": listed("pending", "in_progress", "completed"),
        "priority": listed("high", "medium", "low")}), maxItems=200)}),
    "apply_patch": closed({"input": text(description="The whole patch", maxLength=5_000_000)}),
    "shell": closed({"command": array(TEXT, minItems=1), "workdir": TEXT, "timeout_ms": whole(0)}, "workdir", "timeout_ms"),
    "update_plan": closed({"explanation": TEXT, "plan": array(closed({
        "step": TEXT, "status": listed("pending", "in_progress", "completed")}))}, "explanation"),
    "ls": tool({"path": PATH, "ignore": array(TEXT)}, "ignore"),
    "notebook_edit": tool({"notebook_path": PATH, "cell_id": TEXT, "new_source": TEXT, "cell_type": listed("code", "markdown"),
                           "edit_mode": listed("replace", "insert", "delete")}, "cell_id", "cell_type", "edit_mode"),
    "run_tests": tool({"paths": array(TEXT, maxItems=50), "verbose": FLAG, "k": {"type": ["string", "null"]}}, "verbose", "k"),
    "git_commit": closed({"message": text(minLength=1, maxLength=72), "body": text(maxLength=2000), "amend": FLAG}, "body", "amend"),
    "create_branch": closed({"name": text(pattern="^[A-Za-z0-9._/-]{1,244}$"), "from": text(pattern="^[0-9a-f]{7,40}$")}, "from"),
    "open_pull_request": closed({"title": text(maxLength=256), "body": text(maxLength=65_536), "draft": FLAG,
                                 "labels": array(text(maxLength=50), maxItems=100), "base": TEXT}, "draft", "labels"),
    "lint": tool({"rules": {"type": "object", "additionalProperties": {"enum": ["off", "warn", "error", 0, 1, 2]}}}),
    "symbols": tool({"query": TEXT, "kinds": array(listed("class", "function", "variable"), maxItems=3)}, "kinds"),
    "replace_lines": closed({"path": PATH, "start": whole(1), "end": whole(1), "lines": array(TEXT, maxItems=10_000)}),
    "computer": {"type": "object", "required": ["action"], "properties": {
        "action": listed("click", "type", "scroll", "wait"), "coordinate": array(whole(0, 10_000), minItems=2, maxItems=2),
        "text": text(maxLength=10_000)}},
    "think": closed({"thought": TEXT}),
    "ask_followup": tool({"question": TEXT, "options": array(TEXT, minItems=2, maxItems=4)}, "options"),
    "attempt_completion": tool({"result": TEXT, "command": TEXT}, "command"),
    "new_task": closed({"mode": listed("code", "ask", "debug"), "message": TEXT, "todos": maybe(TEXT)}),
}  # fmt: skip

OFFICES: Json = {
    "send_email": closed({"to": array(text(format="email"), minItems=1, maxItems=500), "subject": text(maxLength=998),
                          "body": TEXT, "cc": array(text(format="email"))}, "cc"),
    "contact": closed({"email": text(format="email", maxLength=254), "phone": text(pattern=r"^\+?[0-9 ()-]{7,20}$"),
                       "name": text(minLength=1, maxLength=255)}, "phone"),
    "create_event": tool({"title": TEXT, "start": TIME, "end": TIME, "attendees": array(TEXT, maxItems=1000),
                          "recurrence": maybe(listed("daily", "weekly", "monthly"))}, "attendees"),
    "reminder": closed({"at": TIME, "every": text(format="duration"), "note": text(maxLength=1000)}, "every"),
    "free_slots": tool({"day": DAY, "minutes": {"type": "integer", "enum": [15, 30, 45, 60]}}),
    "zone": closed({"offset": text(pattern="^[+-](0[0-9]|1[0-4]):[0-5][0-9]$"), "time": text(format="time")}),
    "slack_post": closed({"channel": text(pattern="^[CDG][A-Z0-9]{8,10}$"), "text": text(maxLength=40_000),
                          "thread_ts": text(pattern=r"^\d{10}\.\d{6}$")}, "thread_ts"),
    "spreadsheet": tool({"range": text(pattern="^[A-Z]{1,3}[1-9][0-9]{0,6}(:[A-Z]{1,3}[1-9][0-9]{0,6})?$"),
                         "values": array(array({"type": ["string", "number", "boolean", "null"]}))}),
    "issue": closed({"project": text(pattern="^[A-Z][A-Z0-9]{1,9}$"), "summary": text(maxLength=255), "type": listed("Bug", "Task"),
                     "labels": array(SLUG), "fields": {"type": "object", "additionalProperties": TEXT}}, "fields"),
    "ticket": {"type": "object", "properties": {"priority": {"type": "integer", "minimum": 1, "maximum": 5},
               "assignee": {"type": ["string", "null"]}, "due": {"anyOf": [DAY, NULL]}}, "required": ["priority"]},
    "invoice": closed({"number": text(pattern="^[0-9]{4}-[0-9]{5}$"), "total": MONEY, "lines": array(closed({
        "what": text(maxLength=500), "price": MONEY, "count": whole(1, 99_999)}), minItems=1, maxItems=600)}),
    "payment": closed({"iban": text(pattern="^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"), "amount": {"type": "number", "exclusiveMinimum": 0},
                       "reference": text(maxLength=140)}),
    "vat": {"type": "object", "properties": {"rate": {"enum": [0, 7, 19, 5.5]}, "id": text(pattern="^DE[0-9]{9}$")},
            "required": ["rate"], "additionalProperties": False},
    "survey": tool({"answers": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 5}}}),
    "translate": closed({"text": text(maxLength=30_000), "from": listed("de", "en", "fr", "日本語"), "to": listed("de", "en", "fr")}),
    "document": closed({"blocks": array({"anyOf": [
        closed({"type": {"const": "heading"}, "level": whole(1, 6), "text": TEXT}),
        closed({"type": {"const": "paragraph"}, "text": TEXT}),
        closed({"type": {"const": "list"}, "items": array(TEXT)})]})}),
    "minutes": model("Minutes", {"topics": array(ref("Topic")), "held": DAY}, **{"$defs": {
        "Topic": model("Topic", {"title": TEXT, "decisions": array(TEXT), "owner": maybe(TEXT)}, "owner")}}),
    "tags": tool({"tags": {"type": "array", "items": SLUG, "minItems": 0, "maxItems": 2048}}),
    "short_answer": text(maxLength=280),
    "verdict": {"type": "string", "enum": ["approve", "reject", "needs \"changes\""]},
    "scores": array({"type": "number", "minimum": 0, "maximum": 1}, minItems=3, maxItems=3),
    "empty": {"type": "object", "properties": {}},
    "no_arguments": {"type": "object", "properties": {}, "additionalProperties": False, "required": []},
    "only_type": {"type": "object"},
    "nothing_said": {},
}  # fmt: skip

SHOPS: Json = {
    "search_products": tool({"query": text(maxLength=1000), "min_price": {"type": "number", "minimum": 0}, "max_price": NUMBER,
                             "sort": listed("price", "rating", "new"), "page": whole(1), "per_page": whole(1, 100)},
                            "min_price", "max_price", "sort", "page", "per_page"),
    "add_to_cart": closed({"sku": text(pattern="^[A-Z]{3}-[0-9]{4,8}$"), "quantity": whole(1, 999)}),
    "checkout": closed({"card": text(pattern="^[0-9]{4}( ?[0-9]{4}){3}$"), "cvc": text(minLength=3, maxLength=4),
                        "expires": text(pattern="^(0[1-9]|1[0-2])/[0-9]{2}$"), "gift": FLAG}, "gift"),
    "address": closed({"street": text(minLength=1, maxLength=1000), "zip": text(pattern=r"^\d{5}(-\d{4})?$"),
                       "country": listed("DE", "FR", "US"), "notes": {"type": ["string", "null"], "maxLength": 700}}),
    "book_flight": tool({"from": text(pattern="^[A-Z]{3}$"), "to": text(pattern="^[A-Z]{3}$"), "depart": DAY, "return": maybe(DAY),
                         "cabin": listed("economy", "business", "first"), "passengers": whole(1, 9)}, "return"),
    "book_hotel": closed({"city": TEXT, "check_in": DAY, "nights": whole(1, 30), "stars": {"type": "integer", "enum": [3, 4, 5]},
                          "amenities": array(listed("wifi", "pool", "gym"), maxItems=3)}, "stars", "amenities"),
    "weather": tool({"location": text(description="City, e.g. Paris"), "unit": listed("celsius", "fahrenheit")}, "unit"),
    "forecast": closed({"where": POINT, "days": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 15}}),
    "route": closed({"stops": array(POINT, minItems=2, maxItems=25), "mode": listed("car", "bike", "foot")}, "mode"),
    "box": {"type": "array", "prefixItems": [NUMBER, NUMBER, NUMBER, NUMBER], "items": False, "minItems": 4},
    "convert": closed({"amount": NUMBER, "from": text(pattern="^[A-Z]{3}$"), "to": text(pattern="^[A-Z]{3}$")}),
    "stock": tool({"symbol": text(pattern=r"^[A-Z]{1,5}(\.[A-Z])?$"), "range": listed("1d", "5d", "1mo", "1y")}),
    "order": {"allOf": [tool({"id": UUID}), tool({"paid": FLAG})]},
    "review": closed({"stars": whole(1, 5), "text": text(minLength=10, maxLength=5000)}),
    "restaurant": tool({"party": whole(1, 20), "at": TIME, "diet": array(listed("vegan", "halal", "none"))}, "diet"),
    "recipe": closed({"name": TEXT, "minutes": whole(1, 1440), "ingredients": array(closed(
        {"what": TEXT, "amount": {"type": ["number", "null"]}, "unit": {"type": ["string", "null"]}}), minItems=1),
        "steps": array(text(minLength=1))}),
    "coupon": closed({"code": text(pattern="^[A-Z0-9]{4}(-[A-Z0-9]{4}){2,3}$"), "percent": {"type": "number", "minimum": 0.5, "maximum": 99.5}}),
    "shipping": {"oneOf": [closed({"kind": {"const": "pickup"}, "shop": whole(1)}),
                           closed({"kind": {"const": "parcel"}, "kg": {"type": "number", "exclusiveMinimum": 0, "maximum": 31.5}})]},
    "rating": {"type": "number", "minimum": 0, "maximum": 5},
    "isbn": text(pattern="^97[89]-?[0-9]{1,5}-?[0-9]{1,7}-?[0-9]{1,7}-?[0-9]$"),
    "barcode": text(pattern="^[0-9]{8}$|^[0-9]{13}$"),
    "size": {"anyOf": [listed("S", "M", "L"), whole(30, 60)]},
    "colors": closed({"primary": COLOR, "others": array(COLOR, maxItems=16)}, "others"),
    "catalog": {"type": "object", "patternProperties": {"^[a-z]{2}$": TEXT}, "additionalProperties": False},
    "prices": {"type": "object", "additionalProperties": MONEY, "maxProperties": 1000},
}  # fmt: skip

HOMES: Json = {
    "light": closed({"room": TEXT, "on": FLAG, "brightness": whole(0, 100), "color": COLOR}, "brightness", "color"),
    "thermostat": tool({"target": {"type": "number", "minimum": 5, "maximum": 30}, "mode": listed("heat", "cool", "off")}, "mode"),
    "scene": closed({"name": SLUG, "devices": array(closed({"id": UUID, "state": {"type": "object"}}), maxItems=128)}),
    "alarm": closed({"at": text(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$"), "days": array(listed("mo", "tu", "we"), maxItems=7)}),
    "play": tool({"uri": text(format="uri"), "volume": {"type": "number", "minimum": 0, "maximum": 1}}, "volume"),
    "network": closed({"ip": text(format="ipv4"), "v6": text(format="ipv6"), "host": text(format="hostname"),
                       "mac": text(pattern="^([0-9A-F]{2}:){5}[0-9A-F]{2}$"), "port": whole(1, 65_535)}, "v6", "mac"),
    "cidr": text(pattern=r"^(\d{1,3}\.){3}\d{1,3}/([0-9]|[12][0-9]|3[0-2])$"),
    "cron": text(pattern=r"^(\*|[0-9]{1,2})( (\*|[0-9]{1,2})){4}$"),
    "firmware": text(pattern=r"^v?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}(-[a-z]{1,10})?$"),
    "sensor": closed({"id": UUID, "values": array(NUMBER, minItems=1, maxItems=8640), "since": TIME}),
    "door": {"type": "object", "properties": {"locked": {"const": True}}, "required": ["locked"]},
    "vacuum": tool({"rooms": array({"type": "string", "enum": ["hall", "kitchen"]}, minItems=1, maxItems=2)}),
    "timer": closed({"seconds": whole(1, 86_400), "label": text(maxLength=512)}, "label"),
    "note": {"type": "object", "required": ["text"], "properties": {"text": TEXT, "pinned": {**FLAG, "default": False}}},
    "backup": closed({"keep": {"type": "integer", "minimum": 0}, "target": text(format="uri", maxLength=2048)}),
    "rgb": array(whole(0, 255), minItems=3, maxItems=3),
    "matrix": array(array(NUMBER, minItems=2, maxItems=2), minItems=2, maxItems=2),
    "move": closed({"x": whole(-1000, 1000), "y": whole(-1000, 1000), "speed": {"type": "number", "maximum": 1.5, "minimum": 0.1}}),
    "chess": text(pattern="^([KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](=[QRBN])?[+#]?|O-O(-O)?)$"),
    "dice": text(pattern="^[1-9][0-9]{0,2}d(4|6|8|10|12|20|100)([+-][0-9]{1,3})?$"),
    "character": closed({"name": text(minLength=2, maxLength=600), "class": listed("mage", "thief"), "stats": {
        "type": "object", "properties": {name: whole(3, 18) for name in ("str", "dex", "int")}, "required": ["str", "dex", "int"],
        "additionalProperties": False}, "inventory": array(TEXT, maxItems=1024)}),
    "board": array(array(listed("x", "o", ""), minItems=3, maxItems=3), minItems=3, maxItems=3),
    "guess": whole(1, 100),
    "story": closed({"title": TEXT, "chapters": array(closed({"n": whole(1), "text": text(minLength=1, maxLength=20_000)}))}),
    "quiz": closed({"question": TEXT, "choices": array(TEXT, minItems=4, maxItems=4), "answer": {"type": "integer", "enum": [0, 1, 2, 3]}}),
}  # fmt: skip

NODE = {"Node": model("Node", {"value": WHOLE, "children": array(ref("Node"))}, "children")}
SHAPES = {
    "Circle": closed(
        {"kind": {"const": "circle", "default": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0}}
    ),
    "Square": closed(
        {"kind": {"const": "square", "default": "square"}, "side": {"type": "number", "exclusiveMinimum": 0}}
    ),
}

PYDANTIC: Json = {
    "user": model("User", {"id": WHOLE, "name": text(maxLength=1000), "email": maybe(text(format="email")), "active": {**FLAG, "default": True}}, "email", "active"),
    "constrained": model("Constrained", {"s": text(minLength=1, maxLength=5_000_000), "i": whole(0, 10**9), "l": array(WHOLE, minItems=501, maxItems=2000)}),
    "long_minimum": model("Essay", {"text": text(minLength=800)}),
    "nested": model("Outer", {"inner": ref("Inner"), "more": array(ref("Inner"))}, **{"$defs": {"Inner": model("Inner", {"a": WHOLE, "b": maybe(TEXT)}, "b")}}),
    "enum_by_reference": model("Task", {"status": ref("Status"), "priority": ref("Priority")}, **{"$defs": {
        "Status": {"enum": ["todo", "done"], "title": "Status", "type": "string"}, "Priority": {"enum": [1, 2, 3], "title": "Priority", "type": "integer"}}}),
    "default_by_reference": model("Job", {"state": {"allOf": [ref("State")], "default": "new"}}, "state", **{"$defs": {"State": listed("new", "old")}}),
    "discriminated": model("Drawing", {"shapes": array({"discriminator": {"propertyName": "kind", "mapping": {"circle": "#/$defs/Circle", "square": "#/$defs/Square"}},
                                                         "oneOf": [ref("Circle"), ref("Square")]})}, **{"$defs": SHAPES}),
    "union": model("Value", {"v": {"anyOf": [WHOLE, TEXT, FLAG, NULL]}}),
    "dictionary": model("Map", {"d": {"type": "object", "additionalProperties": ref("Item")}}, **{"$defs": {"Item": model("Item", {"n": WHOLE})}}),
    "tree": {**ref("Node"), "$defs": NODE},
    "linked_list": {**ref("Link"), "$defs": {"Link": model("Link", {"value": TEXT, "next": {"anyOf": [ref("Link"), NULL]}})}},
    "tuple": model("Pair", {"p": {"type": "array", "prefixItems": [TEXT, WHOLE], "minItems": 2, "maxItems": 2}}),
    "literal": model("Literal", {"mode": {"const": "fast"}, "level": {"enum": ["low", "high"], "type": "string"}}),
    "decimal": model("Price", {"p": {"anyOf": [NUMBER, text(pattern=r"^[+-]?0*\d*\.?\d*$")]}}),
    "dates": model("Dates", {"d": DAY, "t": text(format="time"), "dt": TIME, "delta": text(format="duration"), "u": UUID}),
    "url": model("Link", {"url": text(format="uri", minLength=1, maxLength=2083)}),
    "bytes": model("Blob", {"data": text(contentEncoding="base64", pattern="^[A-Za-z0-9+/=]{0,2000}$")}),
    "optional_list": model("Options", {"xs": maybe(array(TEXT)), "n": maybe(whole(1, 10))}, "xs", "n"),
    "extra_forbidden": model("Closed", {"a": WHOLE}, additionalProperties=False),
    "extra_allowed": model("Open", {"a": WHOLE}, additionalProperties=True),
    "deep": model("A", {"b": ref("B")}, **{"$defs": {"B": model("B", {"c": ref("C")}), "C": model("C", {"d": ref("D")}), "D": model("D", {"e": NUMBER})}}),
    "extraction": model("Extraction", {"people": array(ref("Person"), maxItems=600), "summary": text(maxLength=1500)}, **{"$defs": {
        "Person": model("Person", {"name": TEXT, "age": maybe(whole(0, 150)), "roles": array(listed("a", "b"))}, "age")}}),
    "classification": model("Label", {"label": listed("spam", "ham"), "confidence": {"type": "number", "minimum": 0.0, "maximum": 1.0}}),
    "chain_of_thought": model("Reasoned", {"steps": array(ref("Step"), minItems=1), "final_answer": TEXT}, **{"$defs": {"Step": model("Step", {"explanation": TEXT, "output": TEXT})}}),
    "graph": model("Graph", {"nodes": array(ref("N")), "edges": array(ref("E"))}, **{"$defs": {"N": model("N", {"id": WHOLE, "label": TEXT}), "E": model("E", {"a": WHOLE, "b": WHOLE})}}),
    "expression": {**ref("Expr"), "$defs": {
        "Expr": {"anyOf": [ref("Leaf"), ref("Sum")]},
        "Leaf": model("Leaf", {"kind": {"const": "leaf"}, "value": NUMBER}),
        "Sum": model("Sum", {"kind": {"const": "sum"}, "left": ref("Expr"), "right": ref("Expr")})}},
    "keywords_as_names": model("Odd", {"type": TEXT, "enum": WHOLE, "properties": FLAG, "required": TEXT, "$ref_": TEXT}),
    "unicode": model("Größe", {"größe": WHOLE, "名前": TEXT, "emoji 👋": FLAG}),
    "root_list": {"items": WHOLE, "title": "Numbers", "type": "array"},
    "root_union": {"anyOf": [ref("Cat"), ref("Dog")], "$defs": {"Cat": model("Cat", {"meows": FLAG}), "Dog": model("Dog", {"barks": FLAG})}},
    "ge_lt": model("Range", {"x": {"type": "number", "minimum": 0, "exclusiveMaximum": 10}, "y": {"type": "integer", "exclusiveMinimum": -5}}),
    "two_thousand": model("Summary", {"summary": text(minLength=20, maxLength=2000), "points": array(text(maxLength=1000), maxItems=600)}),
}  # fmt: skip

SAFE = {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}

ZOD: Json = {
    "object": zod(closed({"name": TEXT, "age": SAFE})),
    "positive": zod(closed({"n": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}})),
    "nullable": zod(closed({"a": {"anyOf": [TEXT, NULL]}, "b": {"type": ["string", "null"]}})),
    "optional": zod(closed({"a": TEXT, "b": NUMBER}, "b")),
    "default": zod(closed({"n": {"type": "number", "default": 5}})),
    "enum": zod(closed({"e": listed("a", "b", "c")})),
    "literals": zod({"anyOf": [{"type": "string", "const": "a"}, {"type": "number", "const": 7}, {"type": "boolean", "const": False}]}),
    "discriminated": zod({"oneOf": [closed({"type": {"type": "string", "const": "ok"}, "data": TEXT}),
                                    closed({"type": {"type": "string", "const": "error"}, "code": SAFE})]}),
    "record": zod({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": NUMBER}),
    "record_of_enum": zod({"type": "object", "propertyNames": {"type": "string", "enum": ["x", "y"]}, "additionalProperties": NUMBER}),
    "record_of_slugs": zod({"type": "object", "propertyNames": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "additionalProperties": FLAG}),
    "tuple": zod({"type": "array", "items": [TEXT, NUMBER], "minItems": 2, "maxItems": 2}),
    "tuple_and_rest": zod({"type": "array", "items": [TEXT], "additionalItems": NUMBER, "minItems": 1}),
    "intersection": zod({"allOf": [tool({"a": TEXT}), tool({"b": NUMBER})]}),
    "lengths": zod(closed({"a": text(minLength=5, maxLength=5), "b": array(TEXT, minItems=1), "c": text(maxLength=100_000)})),
    "uuid": zod(closed({"id": text(format="uuid")})),
    "datetime": zod(closed({"t": text(format="date-time")})),
    "url": zod(closed({"u": text(format="uri")})),
    "regex": zod(closed({"r": text(pattern="^[A-Z]{2}[0-9]{1,1500}$")})),
    "starts_with": zod(closed({"s": text(pattern="^https://.*")})),
    "ends_with": zod(closed({"s": text(pattern=r".*\.ts$")})),
    "includes": zod(closed({"s": text(pattern="needle")})),
    "lowercase": zod(closed({"s": text(pattern="^[^A-Z]*$")})),
    "lazy": zod({"$ref": "#/definitions/Category", "definitions": {"Category": closed({"name": TEXT, "sub": array({"$ref": "#/definitions/Category"})})}}),
    "by_position": zod(closed({"a": closed({"x": NUMBER}), "b": {"$ref": "#/properties/a"}})),
    "any": zod(closed({"a": {}, "b": True})),
    "unknown_record": zod({"type": "object", "additionalProperties": {}}),
    "passthrough": zod(tool({"a": TEXT}, additionalProperties={})),
    "never_list": zod({"type": "array", "items": {"not": {}}, "maxItems": 0}),
    "int_list": zod(array(SAFE, maxItems=4096)),
    "described": zod(closed({"a": {**TEXT, "description": 'Says "hello" \\ and\nbye'}})),
    "response": zod(closed({"reply": TEXT, "actions": array({"anyOf": [closed({"kind": {"const": "open"}, "id": TEXT}), closed({"kind": {"const": "close"}})]})})),
    "no_integer_bounds": zod(closed({"i": {"type": "integer"}})),
    "string_of_bool": zod(closed({"s": listed("true", "false", "1", "0")})),
    "draft_2020": {"$schema": "https://json-schema.org/draft/2020-12/schema", **closed({"a": {"type": "array", "prefixItems": [TEXT, WHOLE]}})},
}  # fmt: skip

OTHERS: Json = {
    "number_as_id": {"$id": 7, **tool({"a": TEXT})},
    "odd_id": {"$id": "my tool #1", **tool({"a": TEXT})},
    "urn": {"$id": "urn:example:tool:7", **tool({"a": {"$ref": "#/$defs/x"}}), "$defs": {"x": WHOLE}},
    "relative_id": {"$id": "tools/x.json", **tool({"a": {"$ref": "x.json#/$defs/y"}}), "$defs": {"y": FLAG}},
    "ids_inside": {"$id": "https://example.com/a", **tool({"a": {"$ref": "b"}}), "$defs": {"b": {"$id": "b", "type": "integer"}}},
    "anchors": {**tool({"a": {"$ref": "#year"}}), "$defs": {"y": {"$anchor": "year", "type": "integer", "minimum": 1900, "maximum": 2100}}},
    "draft_4_id": {"id": "#Thing", **tool({"next": {"$ref": "#Thing"}, "n": WHOLE}, "next")},
    "document_inside": {**tool({"a": {"$ref": "#/$defs/inner"}}), "$defs": {"inner": {
        "$id": "inner.json", **tool({"x": {"$ref": "#/$defs/leaf"}}), "$defs": {"leaf": {"type": "boolean"}}}}},
    "draft_4_bounds": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 10},
    "draft_4_numbers": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1, "exclusiveMaximum": True},
    "definitions": {"$ref": "#/definitions/a", "definitions": {"a": tool({"b": {"$ref": "#/definitions/b"}}), "b": listed("x")}},
    "escaped_reference": {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": WHOLE}},
    "percent": tool({"p%": whole(0, 100), "a b": TEXT, "x.y": FLAG, "dash-ed": TEXT, "$dollar": NUMBER}),
    "inheritance": {"allOf": [{"$ref": "#/definitions/Base"}, tool({"extra": TEXT})], "definitions": {"Base": tool({"id": WHOLE})}},
    "enum_without_type": tool({"e": {"enum": ["a", 1, None, True]}}),
    "const_object": {"const": {"a": [1, 2, {"b": None}]}},
    "types": tool({"v": {"type": ["integer", "string", "null", "boolean", "array", "object"]}}),
    "no_type": {"properties": {"a": TEXT}, "required": ["a"], "type": "object", "title": "x", "$comment": "y"},
    "read_only": tool({"a": {**TEXT, "readOnly": True}, "b": {**WHOLE, "deprecated": True, "examples": [1]}}),
    "one_of_types": {"oneOf": [TEXT, NUMBER, NULL]},
    "any_of_required": {"type": "object", "anyOf": [closed({"a": TEXT}), closed({"b": TEXT})]},
    "big_numbers": tool({"a": whole(0, 10**15), "b": whole(-(2**31), 2**31 - 1)}),
    "floats": tool({"a": {"type": "number", "minimum": -273.15}, "b": {"type": "number", "maximum": 1e-3, "minimum": 1e-6}}),
    "float_counts": tool({"a": {"type": "string", "minLength": 1.0, "maxLength": 600.0}}),
    "huge": tool({"a": text(maxLength=2**53), "b": array(TEXT, maxItems=10**30), "c": text(pattern="^x{0,99999}$")}),
    "counts_in_patterns": tool({"a": text(pattern="^[a-z]{1000,3000}$"), "b": text(pattern="^(ab){600,}$"), "c": text(pattern="^.{0,2000}$")}),
    "hundred_properties": tool({f"field_{n}": text(maxLength=900 + n) for n in range(100)}),
    "hundred_enums": tool({"country": listed(*(f"Country {n}" for n in range(300)))}),
    "deep_arrays": array(array(array(array(whole(0, 9), maxItems=700), maxItems=700), maxItems=700), maxItems=700),
    "lists_of_long_texts": array(text(maxLength=1000), maxItems=1000),
    "contact_of_two": closed({"a": {"anyOf": [text(format="email"), text(format="uri")]}}),
    "multiple_of_one": tool({"n": {"type": "number", "multipleOf": 1, "minimum": 1, "maximum": 100}}),
    "items_true": {"type": "array", "items": True, "maxItems": 3},
    "unevaluated": {**tool({"a": TEXT}), "unevaluatedProperties": False},
    "min_one_other": {"type": "object", "additionalProperties": WHOLE, "minProperties": 1},
}  # fmt: skip

AGENT_SCHEMAS: dict[str, Json] = {
    f"{group} {name}": schema
    for group, schemas in {
        "coding": CODING,
        "offices": OFFICES,
        "shops": SHOPS,
        "homes": HOMES,
        "pydantic": PYDANTIC,
        "zod": ZOD,
        "others": OTHERS,
    }.items()
    for name, schema in schemas.items()
}


def validator(schema: Any) -> Any:
    """Draft 4 is what its words are from; names of schemas are not what is checked."""
    plain = {name: value for name, value in without_ids(schema).items() if name != "$schema"}
    if (
        not jsonschema_rs.meta.is_valid(plain)
        or "additionalItems" in plain
        or isinstance(plain.get("items"), list)
    ):
        return jsonschema_rs.validator_for(
            {**plain, "$schema": "http://json-schema.org/draft-04/schema#"}, validate_formats=True
        )
    return jsonschema_rs.validator_for(plain, validate_formats=True)
