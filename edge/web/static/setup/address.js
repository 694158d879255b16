// Where a camera that is there already is found. What the box shows has *** for its password; an address that is not touched stays.

import { make } from "../ui.js";
import { field, text } from "../forms.js";

export class Address {
  constructor(draft) {
    this.title = "Address";
    this.url = text(draft.url, { inputmode: "url", autocapitalize: "none" });
    this.record = text(draft.record_url || "", { inputmode: "url", autocapitalize: "none" });
    this.user = text("", { autocapitalize: "none" });
    this.password = text("", { type: "password", autocomplete: "new-password" });
    this.element = make("div", {}, field("Address", this.url, "Of the stream that is analysed. *** stands for the user and password that the box keeps."),
      field("Main stream for clips", this.record, "Empty: clips are cut from the analysed stream."),
      make("details", {}, make("summary", {}, "Other user or password"), make("div", { class: "row-of-fields" },
        field("User", this.user), field("Password", this.password)), make("p", { class: "hint" }, "They take the place of what is kept, for both addresses.")));
  }

  take(draft) {
    if (!this.url.value.trim()) return "The address is missing.";
    const given = this.user.value || this.password.value;
    const typed = (input) => (given ? withoutCredentials(input.value.trim()) : input.value.trim());
    Object.assign(draft, { url: typed(this.url), record_url: typed(this.record) || null,
      credentials: given ? { user: this.user.value, password: this.password.value } : null });
    return "";
  }
}

const withoutCredentials = (url) => url.replace(/:\/\/[^@/]*@/, "://");
