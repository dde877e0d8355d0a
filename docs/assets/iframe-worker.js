// Search, where the site is opened as files: browsers start no worker there, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.ready = new Promise(resolve => {
        frame.onload = () => {
          const inside = frame.contentWindow
          inside.postMessage = data => {
            const event = new MessageEvent("message", { data })
            this.dispatchEvent(event)
            if (this.onmessage) this.onmessage(event)
          }
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = () => resolve(inside)
          inside.document.body.append(script)
        }
      })
      document.documentElement.append(frame)
    }

    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
