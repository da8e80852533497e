/* Adds a button to each text that is worth pasting. Without scripts the text stands there all the same. */
if (navigator.clipboard) {
  for (const text of document.querySelectorAll("pre.paste")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy as Markdown";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    });
    text.before(button);
  }
}
