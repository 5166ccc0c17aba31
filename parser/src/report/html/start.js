// Runs last, when every tab has been added.
new Page();
