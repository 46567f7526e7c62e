// A plain script in the head, so that the page is never painted in the wrong colours first.
(() => {
  const NAME = "isotherm.theme";
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;
  const kept = localStorage.getItem(NAME);
  let choice = CHOICES.includes(kept) ? kept : "system";

  function apply() {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
    document.dispatchEvent(new CustomEvent("theme"));
  }

  function name(button) {
    const words = { system: "Auto", light: "Light", dark: "Dark" };
    const marks = { system: "◐", light: "○", dark: "●" };
    button.textContent = `${marks[choice]} ${words[choice]}`;
    button.setAttribute("aria-label", `Colours: ${words[choice]}. Change them.`);
  }

  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-button");
    name(button);
    button.addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      localStorage.setItem(NAME, choice);
      name(button);
      apply();
    });
  });
})();
