package main

// packages are those whose tests are held to kill what is not listed.
const packages = "psn aeth reth bth bth/mrc bth/frame cnp"

const usage = `usage: mutants [options] [PACKAGE...]

Changes the code of packages in one place at a time, runs the short tests of the
package with each change, and lists the changes that no test noticed. A package
is a folder of the module, such as bth/frame; without one it takes
  ` + packages + `

Changes: < to <= and == to != and the like, arithmetic and bit operators, && and
||, conditions always true and always false, a number plus one, true and false,
a sign or negation dropped, a statement removed. What does not compile does not
count. A test that does not end has noticed.

  -root DIR     the module's folder (default .)
  -sample N     only N of the changes, chosen by -seed
  -seed N       (default 1)
  -state FILE   keep results there, and go on from them: a result counts until a
                file of its package changes
  -accept FILE  changes that no test can or need notice, a line each: the change
                as printed, " | ", and why (default fuzz/mutants/survivors.txt)
  -min PERCENT  share of the changes to be noticed or listed (default 100)
  -match TEXT   only changes whose line has TEXT in it
  -parallel N   tests at a time (default: the number of processors)
  -timeout D    a test that takes longer does not end (default: five times what
                it takes with its build, and 20s)
  -single       build each change by itself; without it one build holds those
                that can be chosen when the tests run: several times as fast
  -list         print the changes, and run nothing
  -v            print each result
  -h            this text

Exit code: 0 as many changes as -min says were noticed or are listed; 1 fewer;
2 bad usage, tests that fail without a change, or a list that has what is no
change any more.

Examples:

  one package, to be stopped and gone on with
      mutants -state /tmp/mutants.jsonl bth/frame
  fifty changes of all packages, the same fifty each time
      mutants -sample 50
  was it killed?
      mutants -match 'psn.go PSN.Diff' -v psn
`
