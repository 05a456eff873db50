// Give each command of a console block a copy button of its own: it copies the command without prompt and output.
// Zensical's script serves all elements with the attribute data-clipboard-text.

// Return the commands of a block, each with its continued lines and here-documents.
function commandsOf(text) {
  const commands = [];
  let heredoc = null;
  let isContinued = false;
  for (const line of text.split("\n")) {
    if (heredoc || isContinued) {
      commands[commands.length - 1] += "\n" + line;
    } else if (line.startsWith("$ ")) {
      commands.push(line.slice(2));
    } else {
      continue;
    }
    if (heredoc) {
      heredoc = line.trim() === heredoc ? null : heredoc;
      isContinued = false;
    } else {
      heredoc = (line.match(/<<-?\s*['"]?(\w+)['"]?/) || [])[1] || null;
      isContinued = line.endsWith("\\");
    }
  }
  return commands;
}

for (const code of document.querySelectorAll(".language-console code")) {
  const commands = commandsOf(code.textContent);
  const prompts = [...code.querySelectorAll(".gp")].filter((prompt) => prompt.textContent.startsWith("$"));
  prompts.slice(0, commands.length).forEach((prompt, number) => {
    const button = document.createElement("button");
    button.className = "copy-command";
    button.dataset.clipboardText = commands[number];
    button.title = "Copy this command";
    button.setAttribute("aria-label", "Copy the command " + commands[number].split("\n")[0]);
    prompt.before(button);
  });
}
