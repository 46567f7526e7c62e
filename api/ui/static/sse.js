// Server-sent events of a response's body.

import { Unreachable } from "./http.js";

export const CUT = "The connection was lost while the answer was written.";

/** Yields the data of each event until the body ends. Throws Unreachable where the connection is cut. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read().catch(cut);
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

function cut(error) {
  throw error.name === "AbortError" ? error : new Unreachable(CUT, { cause: error });
}
