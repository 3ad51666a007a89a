// The JDK's HttpClient, on which Spring AI and LangChain4j build: a tool round trip, whole and streamed.
// Over plain HTTP it offers HTTP/2 with each request that opens a connection ("h2c"), unless told not to.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpClient.Version;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

class Client {
    static final Duration WAIT = Duration.ofSeconds(20);
    static final Object SCHEMA =
            Map.of(
                    "type", "object",
                    "properties", Map.of("city", Map.of("type", "string")),
                    "required", List.of("city"));
    static final Map<String, Object> WEATHER =
            Map.of("name", "get_weather", "description", "The weather in a city.", "parameters", SCHEMA);

    /** What one request brought: the text, its pieces, the calls, the items to send again, the tokens. */
    record Answer(String text, int pieces, List<Map<String, Object>> calls, List<Object> said, long tokens) {}

    interface Api {
        String path();

        Map<String, Object> body(List<Object> history);

        Answer whole(Json answer);

        Answer streamed(List<Json> events);

        Object result(String id, String content);
    }

    static class Chat implements Api {
        public String path() {
            return "/chat/completions";
        }

        public Map<String, Object> body(List<Object> history) {
            var tools = List.of(Map.of("type", "function", "function", WEATHER));
            return Map.of("messages", history, "tools", tools, "stream_options", Map.of("include_usage", true));
        }

        public Answer whole(Json answer) {
            var message = answer.at("choices").at(0).at("message");
            var calls = message.at("tool_calls").all().stream().map(this::call).toList();
            return new Answer(
                    message.at("content").text(),
                    1,
                    calls,
                    List.of(message.value()),
                    answer.at("usage").at("completion_tokens").number());
        }

        Map<String, Object> call(Json call) {
            var function = call.at("function");
            return called(call.at("id").text(), function.at("name").text(), function.at("arguments").text());
        }

        public Answer streamed(List<Json> events) {
            var deltas = events.stream().map(event -> event.at("choices").at(0).at("delta")).toList();
            var texts = deltas.stream().map(delta -> delta.at("content").text()).filter(t -> !t.isEmpty()).toList();
            var parts = deltas.stream().flatMap(delta -> delta.at("tool_calls").all().stream()).toList();
            List<Map<String, Object>> calls = new ArrayList<>();
            if (!parts.isEmpty()) {
                var written = parts.stream().map(part -> part.at("function").at("arguments").text());
                var first = parts.get(0);
                var name = first.at("function").at("name").text();
                calls.add(called(first.at("id").text(), name, written.collect(Collectors.joining())));
            }
            var text = String.join("", texts);
            List<Object> made = new ArrayList<>();
            for (var call : calls) {
                var function = Map.of("name", call.get("name"), "arguments", call.get("arguments"));
                made.add(Map.of("id", call.get("id"), "type", "function", "function", function));
            }
            var said = Map.of("role", "assistant", "content", text, "tool_calls", made);
            var last = events.get(events.size() - 1);
            return new Answer(
                    text, texts.size(), calls, List.of(said), last.at("usage").at("completion_tokens").number());
        }

        public Object result(String id, String content) {
            return Map.of("role", "tool", "tool_call_id", id, "content", content);
        }
    }

    static class Responses implements Api {
        public String path() {
            return "/responses";
        }

        public Map<String, Object> body(List<Object> history) {
            var tool = new LinkedHashMap<String, Object>(WEATHER);
            tool.put("type", "function");
            return Map.of("input", history, "tools", List.of(tool), "store", false);
        }

        public Answer whole(Json answer) {
            var items = answer.at("output").all();
            var texts = new ArrayList<String>();
            var calls = new ArrayList<Map<String, Object>>();
            for (var item : items) {
                for (var part : item.at("content").all()) texts.add(part.at("text").text());
                if (item.at("type").text().equals("function_call")) {
                    calls.add(called(item.at("call_id").text(), item.at("name").text(), item.at("arguments").text()));
                }
            }
            var said = items.stream().map(Json::value).toList();
            var tokens = answer.at("usage").at("output_tokens").number();
            return new Answer(String.join("", texts), 1, calls, said, tokens);
        }

        public Answer streamed(List<Json> events) {
            var of = events.stream().collect(Collectors.groupingBy(event -> event.at("type").text()));
            var deltas = of.getOrDefault("response.output_text.delta", List.of());
            var last = whole(of.get("response.completed").get(0).at("response"));
            var text = deltas.stream().map(event -> event.at("delta").text()).collect(Collectors.joining());
            return new Answer(text, deltas.size(), last.calls(), last.said(), last.tokens());
        }

        public Object result(String id, String content) {
            return Map.of("type", "function_call_output", "call_id", id, "output", content);
        }
    }

    static Map<String, Object> called(String id, String name, String arguments) {
        return Map.of("id", id, "name", name, "arguments", arguments);
    }

    public static void main(String[] arguments) throws Exception {
        var url = arguments[0];
        Api api = arguments[2].equals("chat") ? new Chat() : new Responses();
        boolean stream = arguments[3].startsWith("stream");
        var client = HttpClient.newBuilder().connectTimeout(WAIT);
        if (arguments[3].endsWith("_1_1")) client.version(Version.HTTP_1_1);
        var http = client.build();

        List<Object> history = new ArrayList<>();
        // More than a segment: the body comes after the head, with which HTTP/2 is offered.
        history.add(Map.of("role", "user", "content", "lorem ipsum ".repeat(20_000) + "weather in Rome"));
        List<Object> calls = new ArrayList<>();
        while (true) {
            var body = new LinkedHashMap<String, Object>(api.body(history));
            body.put("model", arguments[1]);
            body.put("stream", stream);
            if (!stream) body.remove("stream_options");
            var request =
                    HttpRequest.newBuilder(URI.create(url + api.path()))
                            .header("Content-Type", "application/json")
                            .header("Authorization", "Bearer " + System.getenv("OPENAI_API_KEY"))
                            .timeout(WAIT)
                            .POST(BodyPublishers.ofString(Json.write(body)))
                            .build();
            var response = http.send(request, BodyHandlers.ofLines());
            var lines = response.body().toList();
            if (response.statusCode() != 200) throw new IllegalStateException(String.join("\n", lines));
            if (response.version() != Version.HTTP_1_1) throw new IllegalStateException("not HTTP/1.1");
            var answer = stream ? api.streamed(events(lines)) : api.whole(Json.read(String.join("\n", lines)));
            history.addAll(answer.said());
            if (answer.calls().isEmpty()) {
                var fact = new LinkedHashMap<String, Object>();
                fact.put("text", answer.text());
                fact.put("calls", calls);
                fact.put("streamed", answer.pieces() > 1);
                fact.put("counted", answer.tokens() > 0);
                System.out.println(Json.write(fact));
                return;
            }
            for (var call : answer.calls()) {
                var input = Json.read((String) call.get("arguments"));
                calls.add(List.of(call.get("name"), input.value()));
                var weather = input.at("city").text().equals("Rome") ? "sunny, 21 degrees" : "unknown";
                history.add(api.result((String) call.get("id"), weather));
            }
        }
    }

    /** The data of server-sent events. */
    static List<Json> events(List<String> lines) {
        return lines.stream()
                .filter(line -> line.startsWith("data: ") && !line.equals("data: [DONE]"))
                .map(line -> Json.read(line.substring(6)))
                .toList();
    }
}

/** A value of JSON: a map, a list, a string, a number or null. The JDK reads none. */
record Json(Object value) {
    Json at(Object key) {
        if (value instanceof Map<?, ?> map) return new Json(map.get(key));
        if (value instanceof List<?> list && (int) key < list.size()) return new Json(list.get((int) key));
        return new Json(null);
    }

    List<Json> all() {
        return value instanceof List<?> list ? list.stream().map(Json::new).toList() : List.of();
    }

    String text() {
        return value instanceof String text ? text : "";
    }

    long number() {
        return value instanceof Number number ? number.longValue() : 0;
    }

    static String write(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                    .map(entry -> write(entry.getKey()) + ":" + write(entry.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Json::write).collect(Collectors.joining(",", "[", "]"));
        }
        if (!(value instanceof String text)) return String.valueOf(value);
        var out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each < ' ' || each == '"' || each == '\\') out.append(String.format("\\u%04x", (int) each));
            else out.append(each);
        }
        return out.append('"').toString();
    }

    static Json read(String text) {
        return new Json(new Reader(text).value());
    }

    private static class Reader {
        private final String text;
        private int at;

        Reader(String text) {
            this.text = text;
        }

        Object value() {
            char first = next();
            if (first == '{') {
                var map = new LinkedHashMap<String, Object>();
                at++;
                while (next() != '}') {
                    var name = string();
                    at += next() == ':' ? 1 : 0;
                    map.put(name, value());
                    at += next() == ',' ? 1 : 0;
                }
                at++;
                return map;
            }
            if (first == '[') {
                var list = new ArrayList<Object>();
                at++;
                while (next() != ']') {
                    list.add(value());
                    at += next() == ',' ? 1 : 0;
                }
                at++;
                return list;
            }
            if (first == '"') return string();
            int start = at;
            while (at < text.length() && ",]} \n".indexOf(text.charAt(at)) < 0) at++;
            var word = text.substring(start, at);
            return switch (word) {
                case "null" -> null;
                case "true", "false" -> Boolean.valueOf(word);
                default -> Double.valueOf(word);
            };
        }

        private char next() {
            while (Character.isWhitespace(text.charAt(at))) at++;
            return text.charAt(at);
        }

        private String string() {
            var out = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char each = text.charAt(at);
                if (each != '\\') {
                    out.append(each);
                    continue;
                }
                each = text.charAt(++at);
                if (each == 'u') {
                    out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                    at += 4;
                } else {
                    int known = "bfnrt".indexOf(each);
                    out.append(known < 0 ? each : "\b\f\n\r\t".charAt(known));
                }
            }
            at++;
            return out.toString();
        }
    }
}
