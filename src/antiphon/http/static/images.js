// Images that are pasted, dropped or chosen, as data URLs that fit in a request.

import { bytes } from "./html.js";

const MOST = 5; // of a message
const MOST_BYTES = 20 * 1024 * 1024; // of a file
const LARGE = 512 * 1024; // bytes: a larger one is reduced, since a request holds all images of its conversation
const SIDE = 1536; // pixels, the longer side of a reduced one
const QUALITY = 0.85;
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"]; // what the server decodes

export const ACCEPTED = TYPES.join(",");

const asUrl = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(blob);
});

// The same picture as a JPEG of few pixels; of an animation, its first frame.
async function reduced(file) {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // a JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture"))), "image/jpeg", QUALITY));
}

function refusal(file, room) {
  if (!TYPES.includes(file.type)) return "is not a PNG, JPEG, WebP, GIF or BMP image";
  if (file.size > MOST_BYTES) return `has ${bytes(file.size)}; the most is ${bytes(MOST_BYTES)}`;
  return room > 0 ? null : `is one too many; a message has at most ${MOST} images`;
}

// {urls, said}: the images among the files, of which there is `present` many already, and what to say about the files.
export async function readImages(files, present) {
  const urls = [];
  const refused = [];
  for (const file of files) {
    const why = refusal(file, MOST - present - urls.length);
    if (why) refused.push(`${file.name} ${why}.`);
    else
      try {
        urls.push(await asUrl(file.size > LARGE ? await reduced(file) : file));
      } catch {
        refused.push(`${file.name} cannot be read.`);
      }
  }
  const added = urls.length ? (urls.length === 1 ? "1 image is added." : `${urls.length} images are added.`) : "";
  return { urls, said: [added, refused.length ? `Not added: ${refused.join(" ")}` : ""].filter(Boolean).join(" ") };
}

// A copy from an office program is text, and also a picture of the text: the text is meant.
export const pastedFiles = (event) => (event.clipboardData.getData("text/plain") ? [] : [...event.clipboardData.files]);

export const dragsFiles = (event) => event.dataTransfer.types.includes("Files");
