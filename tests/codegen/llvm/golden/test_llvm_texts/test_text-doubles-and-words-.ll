; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 8 %A, ptr noalias readonly captures(none) align 8 %B, ptr noalias captures(none) align 8 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.42, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr i64, ptr %B, i64 %.9
  %.11 = load <4 x i64>, ptr %.10, align 8
  %.12 = getelementptr i64, ptr %.10, i64 4
  %.13 = load <4 x i64>, ptr %.12, align 8
  %.14 = srem <4 x i64> %.11, splat (i64 5)
  %.15 = sdiv <4 x i64> %.11, splat (i64 5)
  %.16 = xor <4 x i64> %.14, splat (i64 5)
  %.17 = icmp slt <4 x i64> %.16, zeroinitializer
  %.18 = icmp ne <4 x i64> %.14, zeroinitializer
  %.19 = and <4 x i1> %.17, %.18
  %.20 = sext <4 x i1> %.19 to <4 x i64>
  %.21 = add <4 x i64> %.15, %.20
  %.22 = srem <4 x i64> %.13, splat (i64 5)
  %.23 = sdiv <4 x i64> %.13, splat (i64 5)
  %.24 = xor <4 x i64> %.22, splat (i64 5)
  %.25 = icmp slt <4 x i64> %.24, zeroinitializer
  %.26 = icmp ne <4 x i64> %.22, zeroinitializer
  %.27 = and <4 x i1> %.25, %.26
  %.28 = sext <4 x i1> %.27 to <4 x i64>
  %.29 = add <4 x i64> %.23, %.28
  %.30 = sitofp <4 x i64> %.21 to <4 x double>
  %.31 = sitofp <4 x i64> %.29 to <4 x double>
  %.32 = getelementptr double, ptr %A, i64 %.9
  %.33 = load <4 x double>, ptr %.32, align 8
  %.34 = getelementptr double, ptr %.32, i64 4
  %.35 = load <4 x double>, ptr %.34, align 8
  %.36 = call <4 x double> @llvm.sqrt.v4f64(<4 x double> %.33)
  %.37 = call <4 x double> @llvm.sqrt.v4f64(<4 x double> %.35)
  %.38 = fadd contract <4 x double> %.30, %.36
  %.39 = fadd contract <4 x double> %.31, %.37
  %.40 = getelementptr double, ptr %C, i64 %.9
  store <4 x double> %.38, ptr %.40, align 8
  %.41 = getelementptr double, ptr %.40, i64 4
  store <4 x double> %.39, ptr %.41, align 8
  %i_next.42 = add nuw nsw i64 %i.8, 1
  %.43 = icmp slt i64 %i_next.42, %.4
  br i1 %.43, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <4 x double> @llvm.sqrt.v4f64(<4 x double>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 8 %A, ptr noalias readonly captures(none) align 8 %B, ptr noalias captures(none) align 8 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.26, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr i64, ptr %B, i64 %.9
  %.11 = load <8 x i64>, ptr %.10, align 8
  %.12 = srem <8 x i64> %.11, splat (i64 5)
  %.13 = sdiv <8 x i64> %.11, splat (i64 5)
  %.14 = xor <8 x i64> %.12, splat (i64 5)
  %.15 = icmp slt <8 x i64> %.14, zeroinitializer
  %.16 = icmp ne <8 x i64> %.12, zeroinitializer
  %.17 = and <8 x i1> %.15, %.16
  %.18 = sext <8 x i1> %.17 to <8 x i64>
  %.19 = add <8 x i64> %.13, %.18
  %.20 = sitofp <8 x i64> %.19 to <8 x double>
  %.21 = getelementptr double, ptr %A, i64 %.9
  %.22 = load <8 x double>, ptr %.21, align 8
  %.23 = call <8 x double> @llvm.sqrt.v8f64(<8 x double> %.22)
  %.24 = fadd contract <8 x double> %.20, %.23
  %.25 = getelementptr double, ptr %C, i64 %.9
  store <8 x double> %.24, ptr %.25, align 8
  %i_next.26 = add nuw nsw i64 %i.8, 1
  %.27 = icmp slt i64 %i_next.26, %.4
  br i1 %.27, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x double> @llvm.sqrt.v8f64(<8 x double>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
