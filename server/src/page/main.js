// The live page: the list of processes, and one process. All of it is read as JSON; what comes from
// processes is set as text only.
import { List } from "./list.js";
import { Processes } from "./net.js";
import { Process } from "./process.js";
import { Address } from "./state.js";

class Live {
  constructor() {
    this.view = null;
    this.processes = new Processes(() => this.view && this.view.refresh());
    addEventListener("hashchange", () => this.open());
    this.open();
  }
  open() {
    if (this.view) this.view.end();
    document.body.replaceChildren();
    const address = Address.read();
    this.view = address.path === "/process" ? new Process(this.processes, address) : new List(this.processes, address);
  }
}

new Live();
