// Images that are pasted, dropped or chosen, as data URLs.

const read = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});

// {urls, said}: the images among the files, and what to say about the files.
export async function readImages(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  const others = [...files].filter((file) => !images.includes(file)).map((file) => file.name);
  const urls = [];
  for (const image of images) {
    try {
      urls.push(await read(image));
    } catch {
      others.push(image.name);
    }
  }
  const added = urls.length === 1 ? "1 image is added." : urls.length ? `${urls.length} images are added.` : "";
  const refused = others.length ? `Not added, since it cannot be read as an image: ${others.join(", ")}.` : "";
  return { urls, said: [added, refused].filter(Boolean).join(" ") };
}

// A copy from an office program is text, and also a picture of the text: the text is meant.
export const pastedFiles = (event) => (event.clipboardData.getData("text/plain") ? [] : [...event.clipboardData.files]);

export const dragsFiles = (event) => event.dataTransfer.types.includes("Files");
