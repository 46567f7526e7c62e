// Asking again and again: with patience when nobody answers, and not at all while nobody looks.

import { KeyMissing } from "./keys.js";

const EVERY_MS = 1500;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

export class Poller {
  #task;
  #tell;
  #timer = 0;
  #running = false;
  #failures = 0;

  /** task: async, throws when it fails. tell: is called with "live", "locked" or "reconnecting", and then with the
   * milliseconds until the next try and the error. */
  constructor(task, tell) {
    this.#task = task;
    this.#tell = tell;
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.now(); });
    window.addEventListener("online", () => this.now());
  }

  /** Ask at once, unless an answer is on its way. */
  now() {
    clearTimeout(this.#timer);
    if (!this.#running) void this.#round();
  }

  async #round() {
    if (document.hidden) return;
    this.#running = true;
    let wait = EVERY_MS;
    try {
      await this.#task();
      this.#failures = 0;
      this.#tell("live");
    } catch (error) {
      if (error instanceof KeyMissing) {
        this.#tell("locked");
        return;
      }
      wait = Math.min(FIRST_WAIT_MS * 2 ** this.#failures, LONGEST_WAIT_MS);
      this.#failures += 1;
      this.#tell("reconnecting", wait, error);
    } finally {
      this.#running = false;
    }
    this.#timer = setTimeout(() => void this.#round(), wait);
  }
}
