import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

/** The licenses of the packages in the bundle, which must go with it. */
function licenses() {
  const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
  const texts = Object.entries(dependencies).map(([name, version]) => {
    const license = readFileSync(`node_modules/${name}/LICENSE`, "utf8").replaceAll("\r\n", "\n").trim();
    return `${name} ${version}\n\n${license}\n`;
  });
  const source = `app.js contains these packages:\n\n${texts.join("\n----\n\n")}`;
  return {
    name: "licenses",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "licenses.txt", source });
    },
  };
}

// Names without hashes, and no timestamps: `make check` builds again and compares.
export default defineConfig({
  base: "./",
  plugins: [licenses()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/leafwise/web/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", chunkFileNames: "[name].js", assetFileNames: "app[extname]" },
    },
  },
});
