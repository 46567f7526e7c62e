// An answer of the chat endpoint, while it is written.

import { HttpError, send, Unreachable } from "./http.js";
import { CUT, events } from "./sse.js";

/** Asks for an answer and puts it into `answer` (see conversation.js) piece by piece; onChange after each.
 * Throws HttpError for what the server says against it, Unreachable where the connection
 * is cut, and an AbortError when the signal says stop. */
export async function complete(request, answer, signal, onChange) {
  const asked = performance.now();
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  const response = await send("v1/chat/completions", { method: "POST", body, signal });
  let first = 0;
  let last = 0;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      answer.complete = true;
      break;
    }
    const piece = JSON.parse(data);
    if (piece.error) throw new HttpError(piece.error.message ?? "the answer broke off", 500);
    const choice = piece.choices?.[0];
    if (choice && take(choice, answer)) {
      last = performance.now();
      first ||= last;
    }
    if (piece.usage) answer.stats = stats(piece.usage, asked, first, last);
    onChange();
  }
  if (!answer.complete) throw new Unreachable(CUT);
}

function take(choice, answer) {
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  answer.reasoning += reasoning;
  answer.content += delta.content ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = (answer.calls[part.index ?? 0] ??= { id: "", name: "", arguments: "" });
    call.id = part.id ?? call.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  return Boolean(reasoning || delta.content || delta.tool_calls);
}

function stats(usage, asked, first, last) {
  const tokens = usage.completion_tokens;
  return {
    tokens,
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    firstMs: first ? first - asked : null,
    perSecond: tokens > 1 && last > first ? ((tokens - 1) * 1000) / (last - first) : null,
  };
}
