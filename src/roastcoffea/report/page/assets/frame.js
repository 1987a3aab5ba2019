"use strict";
// What a block of base64 holds that was compressed, as a response: .json(), .arrayBuffer().
function unpacked(element) {
  const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
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
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
}
