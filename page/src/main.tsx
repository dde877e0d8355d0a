import { render } from "preact";

render(<p>leafwise</p>, document.getElementById("app")!);
