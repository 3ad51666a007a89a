// Requests to the server: the API key, errors, and streams.

const KEY = "antiphon.key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// The server has answered with an error: `status` is that of HTTP, `code` is that of the API.
export class RequestError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code;
    this.param = error?.param;
  }
}

export async function request(path, { body, method, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  const form = body instanceof FormData; // the browser says itself of what type it is
  if (body !== undefined && !form) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers,
    signal,
    body: body === undefined || form ? body : JSON.stringify(body),
  });
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  if (response.status === 401) dispatchEvent(new Event("antiphon-key-required"));
  throw new RequestError(response.status, answer?.error);
}

export const json = async (path, options) => (await request(path, options)).json();

// The server-sent events of a response, each as the object that it holds.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
