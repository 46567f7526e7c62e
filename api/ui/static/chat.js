// The chat: a conversation with the model that is served.

import { complete } from "./completion.js";
import { Conversation, emptyAnswer, toolTurn, userTurn } from "./conversation.js";
import { button, byId, el, setText } from "./dom.js";
import * as models from "./models.js";
import { AnswerView, saidView } from "./turn_view.js";
import * as settings from "./settings.js";

const DRAW_EVERY_MS = 50;
const NEAR_PX = 60; // of the end: whoever is so near wants to follow it
const IDEAS = [
  "What is an isotherm?",
  "Explain mixture-of-experts models in three sentences.",
  "Write a haiku about memory bandwidth.",
];

const transcript = byId("transcript");
const prompt = byId("prompt");
const views = new Map(); // by turn
const conversation = new Conversation();
let open = null; // { answer, stop } while one is written
let drawTimer = 0;

export function start() {
  settings.start();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  byId("stop").addEventListener("click", () => open?.stop.abort());
  byId("new-chat").addEventListener("click", begin);
  prompt.addEventListener("input", fit);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      say();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && open && !document.querySelector("dialog[open]")) open.stop.abort();
  });
  rebuild();
}

function say() {
  const text = prompt.value.trim();
  if (!text || open) return;
  prompt.value = "";
  fit();
  append(userTurn(text));
  void answer();
}

function begin() {
  open?.stop.abort();
  conversation.clear();
  conversation.save();
  rebuild();
  prompt.focus();
}

const actions = {
  onRetry(turn) {
    if (open) return;
    conversation.cut(turn);
    rebuild();
    void answer();
  },
  onResults(turn, texts) {
    if (open) return;
    turn.calls.forEach((call, which) => append(toolTurn(call.id, texts[which])));
    void answer();
  },
};

async function answer() {
  const turn = emptyAnswer();
  const stop = new AbortController();
  const messages = conversation.messages(settings.system());
  append(turn);
  open = { answer: turn, stop };
  showOpen();
  setText(byId("chat-status"), "The answer is being written.");
  try {
    const model = models.chosen();
    await complete({ ...(model ? { model } : {}), messages, ...settings.fields() }, turn, stop.signal, drawSoon);
  } catch (error) {
    if (stop.signal.aborted) turn.stopped = true;
    else turn.error = error.message;
  }
  if (open?.answer === turn) open = null;
  clearTimeout(drawTimer);
  drawTimer = 0;
  if (!conversation.turns.includes(turn)) return; // another conversation was begun
  const isKept = conversation.save();
  draw();
  showOpen();
  setText(byId("chat-status"), `${outcome(turn)}${isKept ? "" : " This browser does not keep the conversation."}`);
}

function outcome(turn) {
  if (turn.error) return `The answer failed: ${turn.error}`;
  return turn.stopped ? "The answer was stopped." : "The answer is complete.";
}

function append(turn) {
  conversation.add(turn);
  transcript.querySelector(".empty")?.remove();
  const before = conversation.turns.at(-2);
  transcript.append(viewOf(turn));
  if (before) views.get(before)?.show({ isOpen: false, isLast: false });
  conversation.save();
  transcript.scrollTop = transcript.scrollHeight;
}

function viewOf(turn) {
  if (turn.role !== "assistant") return saidView(turn);
  const view = new AnswerView(turn, actions);
  views.set(turn, view);
  return view.node;
}

function rebuild() {
  views.clear();
  transcript.replaceChildren(...conversation.turns.map(viewOf));
  if (!conversation.turns.length) transcript.append(emptyView());
  for (const [turn, view] of views) view.show({ isOpen: false, isLast: turn === conversation.turns.at(-1) });
  showOpen();
  transcript.scrollTop = transcript.scrollHeight;
}

function emptyView() {
  const begin = (text) => {
    prompt.value = text;
    say();
  };
  return el("div", { class: "empty" },
    el("p", {}, "Nothing was said yet. Ask something, or begin with one of these:"),
    IDEAS.map((text) => button(text, () => begin(text), "idea")));
}

function drawSoon() {
  drawTimer ||= setTimeout(() => {
    drawTimer = 0;
    draw();
  }, DRAW_EVERY_MS);
}

function draw() {
  const turn = conversation.turns.at(-1);
  const follows = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < NEAR_PX;
  views.get(turn)?.show({ isOpen: open?.answer === turn, isLast: true });
  if (follows) transcript.scrollTop = transcript.scrollHeight;
}

/** Send or stop, whichever makes sense now; the focus stays where it can be used. */
function showOpen() {
  const [send, stop] = [byId("send"), byId("stop")];
  const hadFocus = [send, stop].includes(document.activeElement);
  send.hidden = open !== null;
  stop.hidden = open === null;
  transcript.setAttribute("aria-busy", String(open !== null));
  if (hadFocus) (open ? stop : prompt).focus();
  if (open) draw();
}

/** As high as its text, up to a limit that the style sets. */
function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}
