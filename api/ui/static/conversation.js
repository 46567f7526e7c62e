// The conversation, kept by the browser.

const NAME = "isotherm.chat";
const MOST_CHARACTERS = 2_000_000; // browsers give a site 5 MB

export const userTurn = (content) => ({ role: "user", content });

export const toolTurn = (id, content) => ({ role: "tool", id, content });

/** An answer that is yet to come. calls: of tools; finish: why it ended; error: why it failed. */
export const emptyAnswer = () => ({
  role: "assistant", content: "", reasoning: "", calls: [],
  finish: "", error: "", stopped: false, complete: false, stats: null,
});

export class Conversation {
  constructor() {
    this.turns = load();
  }

  add(turn) {
    this.turns.push(turn);
  }

  /** Take the turns from `turn` on back. */
  cut(turn) {
    this.turns.splice(this.turns.indexOf(turn));
  }

  clear() {
    this.turns = [];
  }

  /** Keep it. False where the browser does not, or it has become too long to be kept whole. */
  save() {
    const text = JSON.stringify(this.turns);
    try {
      if (text.length > MOST_CHARACTERS) return false;
      localStorage.setItem(NAME, text);
    } catch {
      return false; // private windows have no room
    }
    return true;
  }

  /** The turns as the chat endpoint takes them. */
  messages(system) {
    const first = system ? [{ role: "system", content: system }] : [];
    return [...first, ...this.turns.map(asMessage)];
  }
}

function asMessage(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.id, content: turn.content };
  if (turn.role === "user") return { role: "user", content: turn.content };
  const calls = turn.calls.map((call) => ({
    id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
  }));
  return { role: "assistant", content: turn.content, ...(calls.length ? { tool_calls: calls } : {}) };
}

function load() {
  try {
    const turns = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(turns) ? turns.filter(isTurn) : [];
  } catch {
    return []; // what is there is none of ours
  }
}

function isTurn(turn) {
  if (typeof turn?.content !== "string") return false;
  return turn.role !== "assistant" || (typeof turn.reasoning === "string" && Array.isArray(turn.calls));
}
