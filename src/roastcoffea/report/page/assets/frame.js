"use strict";
// The decompressed content of a base64 block, as a response: .json(), .arrayBuffer().
function unpacked(element) {
  const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}

async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return;
    } catch (refused) {
      if (!(refused instanceof DOMException)) throw refused; // the browser refused: use the fallback
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

{
  const root = document.documentElement;
  const scheme = document.getElementById("scheme");
  for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
  const tell = () => document.dispatchEvent(new Event("scheme"));
  scheme.addEventListener("change", () => {
    if (scheme.value) root.dataset.scheme = scheme.value;
    else delete root.dataset.scheme;
    tell();
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await copyText(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
}
