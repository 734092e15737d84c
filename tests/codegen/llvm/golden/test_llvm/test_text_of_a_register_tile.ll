; every loop is explicit
target triple = "x86_64-unknown-linux-gnu"

define void @tile(ptr noalias readonly captures(none) align 4 dereferenceable(64) %a, ptr noalias readonly captures(none) align 4 dereferenceable(512) %b, ptr noalias captures(none) align 4 dereferenceable(128) %c, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %acc.4 = alloca [32 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store <16 x float> zeroinitializer, ptr %acc.4, align 64
  %.5 = getelementptr float, ptr %acc.4, i64 16
  store <16 x float> zeroinitializer, ptr %.5, align 64
  br label %k_body.6
k_body.6:
  %k.8 = phi i64 [ 0, %first.1 ], [ %k_next.27, %k_body.6 ]
  %.9 = load <16 x float>, ptr %acc.4, align 64
  %.10 = mul nsw i64 %k.8, 2
  %.11 = getelementptr float, ptr %a, i64 %.10
  %.12 = load float, ptr %.11, align 4
  %.13 = mul nsw i64 %k.8, 16
  %.14 = getelementptr float, ptr %b, i64 %.13
  %.15 = load <16 x float>, ptr %.14, align 4
  %.16 = insertelement <16 x float> poison, float %.12, i64 0
  %.17 = shufflevector <16 x float> %.16, <16 x float> poison, <16 x i32> zeroinitializer
  %.18 = fmul contract <16 x float> %.17, %.15
  %.19 = fadd contract <16 x float> %.9, %.18
  store <16 x float> %.19, ptr %acc.4, align 64
  %.20 = load <16 x float>, ptr %.5, align 64
  %.21 = getelementptr float, ptr %.11, i64 1
  %.22 = load float, ptr %.21, align 4
  %.23 = insertelement <16 x float> poison, float %.22, i64 0
  %.24 = shufflevector <16 x float> %.23, <16 x float> poison, <16 x i32> zeroinitializer
  %.25 = fmul contract <16 x float> %.24, %.15
  %.26 = fadd contract <16 x float> %.20, %.25
  store <16 x float> %.26, ptr %.5, align 64
  %k_next.27 = add nuw nsw i64 %k.8, 1
  %.28 = icmp slt i64 %k_next.27, 8
  br i1 %.28, label %k_body.6, label %k_done.7, !llvm.loop !0
k_done.7:
  %.29 = load <16 x float>, ptr %acc.4, align 64
  store <16 x float> %.29, ptr %c, align 4
  %.30 = load <16 x float>, ptr %.5, align 64
  %.31 = getelementptr float, ptr %c, i64 16
  store <16 x float> %.30, ptr %.31, align 4
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
