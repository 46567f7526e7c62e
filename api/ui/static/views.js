// Which view is shown: named by the address, so that it can be linked to and the browser's back works.

const NAMES = ["chat", "experts", "plan", "server"];
const wide = matchMedia("(min-width: 1100px)"); // as in layout.css: there the chat is always shown, beside another view

export const current = () => document.body.dataset.view;

/** Whether a view can be seen now. On a wide screen the experts stand beside the chat. */
export function isShown(name) {
  const view = current();
  if (view === name) return true;
  return wide.matches && (name === "chat" || (name === "experts" && view === "chat"));
}

/** onChange: is called when another view is shown. */
export function start(onChange) {
  const follow = () => {
    const name = location.hash.replace(/^#\//, "");
    if (!NAMES.includes(name) && location.hash) return; // the link to the content
    document.body.dataset.view = NAMES.includes(name) ? name : "chat";
    mark();
    onChange();
  };
  const mark = () => {
    for (const link of document.querySelectorAll("nav a")) {
      const named = link.dataset.view;
      const shown = named === current() || (wide.matches && named === "experts" && current() === "chat");
      if (shown && !(wide.matches && named === "chat")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  };
  window.addEventListener("hashchange", follow);
  wide.addEventListener("change", follow);
  follow();
}
