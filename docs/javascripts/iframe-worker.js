// Search in a site that is opened from disk. Browsers start no worker from a file, so the script of the worker runs in
// a hidden frame instead, which receives and answers the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.answer = data => this.dispatchEvent(new MessageEvent("message", {data}));
      this.frame.srcdoc =
        `<script>self.postMessage = data => frameElement.answer(data)<\/script><script src="${url}"><\/script>`;
      this.loaded = new Promise(resolve => this.frame.addEventListener("load", resolve));
      document.body.append(this.frame);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}));
    }
  };
}
